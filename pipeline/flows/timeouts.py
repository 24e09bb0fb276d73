"""Durations in seconds from environment variables; they change no number, so they are not params."""

import math
import os

from stages.contracts.errors import ParamsError
from stages.contracts.fields import MAX_SECONDS


def read_seconds(variable: str, default: float) -> float:
    """Return the value of *variable*, or *default* if it is empty.

    Raises `ParamsError` unless it is a number from 0 to `MAX_SECONDS`.
    """
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_SECONDS:
        raise ParamsError(f"{variable} is {text!r}. Set it to a number of seconds from 0 to {MAX_SECONDS}")
    return seconds
