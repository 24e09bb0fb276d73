"""The checks of ``learner doctor``: environment, dependencies, DVC storage, checkout and stale files."""
