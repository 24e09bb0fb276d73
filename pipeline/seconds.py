"""Seconds that an environment variable sets: they change no number, so they are no param."""

import os

from stages.contracts.errors import ParamsError


def seconds_of(variable: str, default: float) -> float:
    """What *variable* says, or *default*. Raises `ParamsError` where that is no number."""
    text = os.environ.get(variable, "")
    try:
        return float(text) if text else default
    except ValueError as error:
        raise ParamsError(f"{variable} is {text!r}: it is to be a number of seconds") from error
