"""Waiting for a state, with a limit that a busy machine does not reach."""

import time
from contextlib import suppress

LIMIT_SECONDS = 240
"""How long a state may take; a test that passes never waits as long."""


def wait_until(is_so, describe=None, process=None):
    """Return the first true value of *is_so*; `OSError` and `ValueError` count as false.

    Raises `AssertionError` with what *describe* returns, if there is none within `LIMIT_SECONDS` or
    before *process* ends.
    """
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        has_ended = process is not None and process.poll() is not None  # asked before the last look
        with suppress(OSError, ValueError):
            if value := is_so():
                return value
        if has_ended or time.monotonic() > end:
            reason = f"process {process.pid} ended" if has_ended else f"no result in {LIMIT_SECONDS} s"
            raise AssertionError(f"{reason}: {describe() if describe else 'nothing is known of it'}")
        time.sleep(0.02)
