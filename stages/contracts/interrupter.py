"""Asking a run to stop."""

import threading


class Interrupter:
    """A flag that any thread, renderer or signal handler may raise; the loop looks at it after each step.

    Burn's `Interrupter`.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._reason: str | None = None

    def stop(self, reason: str | None = None) -> None:
        """Have the run stop after the step it is in; the first *reason* given stays."""
        if not self._stopped.is_set():
            self._reason = reason
        self._stopped.set()

    def reset(self) -> None:
        """Take it back: the next run is not stopped."""
        self._stopped.clear()
        self._reason = None

    def should_stop(self) -> bool:
        """Whether somebody asked."""
        return self._stopped.is_set()

    @property
    def message(self) -> str | None:
        """Why, where that was said."""
        return self._reason
