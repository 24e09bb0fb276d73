"""Bincode, which stores no names and is read with an example."""
