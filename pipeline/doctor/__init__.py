"""The checks of ``learner doctor``: environment, dependencies, checkout, and stale or damaged files."""
