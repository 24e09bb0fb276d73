"""Asking a run to stop."""


class Interrupter:
    """A flag that any thread, renderer or signal handler may raise; the loop looks at it after each step.

    Burn's `Interrupter`. It has no lock, because a signal handler that waits for one may wait for ever.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._reason: str | None = None
        self._listener = False

    def stop(self, reason: str | None = None) -> None:
        """Have the run stop after the step it is in; the first *reason* given stays."""
        if not self._stopped:
            self._reason = reason
        self._stopped = True

    def reset(self) -> None:
        """Take it back: the next run is not stopped."""
        self._stopped = False
        self._reason = None

    def should_stop(self) -> bool:
        """Whether somebody asked."""
        self._listener = True
        return self._stopped

    def has_listener(self) -> bool:
        """Whether anybody has looked yet: before that, a request to stop waits for the loop to begin."""
        return self._listener

    @property
    def message(self) -> str | None:
        """Why, where that was said."""
        return self._reason
