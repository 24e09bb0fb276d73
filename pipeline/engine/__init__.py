"""DVC, run in this process: one stage at a time, with its locks, signals and repairs."""
