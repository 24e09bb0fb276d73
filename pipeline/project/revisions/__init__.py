"""Readers of a run at a git revision: its name, files, results and checkpoints."""
