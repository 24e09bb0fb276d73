"""Conversion between torch modules and the records of the Burn modules with the same fields."""
