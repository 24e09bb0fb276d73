"""Conversion between torch modules and optimizers and the records of their counterparts in Burn."""
