"""Files, locks, processes, signals and patches: what the parts need of the operating system and of torch."""
