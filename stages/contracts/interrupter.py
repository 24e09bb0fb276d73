"""A flag that stops a run."""


class Interrupter:
    """A flag that any thread, renderer or signal handler can set; the loop checks it after each step.

    Burn's `Interrupter`. It has no lock, because a signal handler could wait for a lock forever.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._reason: str | None = None
        self._listener = False
        self._is_obeyed = False

    def begin_run(self) -> None:
        """Clear the flag if an earlier run has stopped for it; any other stop is that of the new run."""
        if self._is_obeyed:
            self.reset()

    def obey(self) -> None:
        """Stop the run that calls this, on all ranks, and no later one."""
        self.stop()
        self._is_obeyed = True

    def stop(self, reason: str | None = None) -> None:
        """Stop the run after the current step. The *reason* of the first call is kept."""
        if not self._stopped:
            self._reason = reason
        self._stopped = True

    def reset(self) -> None:
        """Clear the flag and the reason."""
        self._stopped = self._is_obeyed = False
        self._reason = None

    def should_stop(self) -> bool:
        """Return whether the run must stop."""
        self._listener = True
        return self._stopped

    def has_listener(self) -> bool:
        """Return whether the flag was ever checked; a stop before that takes effect when the loop starts."""
        return self._listener

    @property
    def message(self) -> str | None:
        """The reason of the stop; None before a stop."""
        return self._reason
