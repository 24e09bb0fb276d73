"""Waits for a state, with a generous timeout for busy machines."""

import time
from contextlib import suppress
from pathlib import Path

LIMIT_SECONDS = 600
"""Timeout of a wait; a test that passes never reaches it."""


def wait_until(is_so, describe=None, process=None, *, pause_seconds=0.02):
    """Call *is_so* until its value is true, and return it; `OSError` and `ValueError` count as false.

    Raises `AssertionError` with the text that *describe* returns, after `LIMIT_SECONDS` or when *process* has
    ended.
    """
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        has_ended = (
            process is not None and process.poll() is not None
        )  # before the last call, so that no state is missed
        with suppress(OSError, ValueError):
            if value := is_so():
                return value
        if has_ended or time.monotonic() > end:
            reason = f"process {process.pid} ended" if has_ended else f"no result in {LIMIT_SECONDS} s"
            raise AssertionError(f"{reason}: {describe() if describe else 'no description'}")
        time.sleep(pause_seconds)


def has_exited(pid):
    """Return whether process *pid* has exited; a zombie has, whose parent did not read its exit."""
    with suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True
