"""The project: its params, paths, lock file, YAML, git and revisions, and the check of its settings."""
