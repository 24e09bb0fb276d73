"""Durations in seconds from environment variables; they change no number, so they are not params."""

import os

from stages.contracts.errors import ParamsError


def seconds_of(variable: str, default: float) -> float:
    """Return the value of *variable*, or *default* if it is empty. Raises `ParamsError` for other text."""
    text = os.environ.get(variable, "")
    try:
        return float(text) if text else default
    except ValueError as error:
        raise ParamsError(f"{variable} is {text!r}: it is to be a number of seconds") from error
