"""Sweeps: an experiment for each point of a grid, in isolated copies, on threads, Dask or Ray."""
