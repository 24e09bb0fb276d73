"""Conversion between torch optimizers and the records of Burn's optimizers."""
