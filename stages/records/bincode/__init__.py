"""Bincode, which has no names: it is read by an example."""
