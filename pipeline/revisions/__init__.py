"""A run of this project at any git revision, read from DVC's cache or its remote."""
