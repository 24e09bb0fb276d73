"""Time limits of a flow run: durations from environment variables, and deadlines on the monotonic clock."""

import math
import os
import time

from stages.contracts.errors import ParamsError
from stages.contracts.fields import MAX_SECONDS

MIN_SECONDS = 0.01
"""The shortest timeout of a task, because Prefect reads a timeout of 0 as no timeout."""
ROUNDING_SECONDS = 0.1
"""The timeouts of tasks are rounded to this, because their logs show them."""


def read_seconds(variable: str, default: float) -> float:
    """Return the value of the environment variable *variable*, or *default* if it is empty.

    These durations change no number, so they are not params. Raises `ParamsError` unless the value is a
    number from 0 to `MAX_SECONDS`.
    """
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_SECONDS:
        raise ParamsError(f"{variable} is {text!r}. Set it to a number of seconds from 0 to {MAX_SECONDS}")
    return seconds


def deadline_after(seconds: float | None) -> float | None:
    """Return the time on the monotonic clock in *seconds* from now; None for no deadline."""
    return None if seconds is None else time.monotonic() + seconds


def seconds_left(deadline: float | None) -> float | None:
    """Return the timeout of a task that must end at *deadline*; None for no deadline."""
    if deadline is None:
        return None
    return max(MIN_SECONDS, round(deadline - time.monotonic(), 1))


def has_passed(deadline: float | None) -> bool:
    """Return whether *deadline* has passed; False for no deadline.

    A `TimeoutError` alone does not show this, because user code raises that error too.
    """
    return deadline is not None and time.monotonic() >= deadline - ROUNDING_SECONDS
