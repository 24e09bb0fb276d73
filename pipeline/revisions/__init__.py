"""Readers of a run at a git revision: its names, its files, its results, its checkpoints."""
