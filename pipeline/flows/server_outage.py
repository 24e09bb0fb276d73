"""A bound on the wait of a finished flow for an unreachable Prefect server.

Prefect reports the final state of a run to the server, and retries for a long time if the server does not
respond. By then DVC has recorded the stages, so the process can exit without loss.
"""

import math
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

import httpx
from prefect.settings import PREFECT_API_URL

from stages.contracts.errors import ParamsError, StageError
from stages.contracts.fields import MAX_SECONDS
from stages.contracts.printing import print_error
from stages.contracts.text import hide_passwords

VARIABLE = "LEARNER_GOODBYE_SECONDS"
DEFAULT_SECONDS = 60.0
"""Default time without a response after which the process exits."""
PROBE_SECONDS = 2.0
PAUSE_SECONDS = 0.2
RETRIED_CODES = "500,504"
"""Statuses after which Prefect's client repeats a request for a minute, as after 502 and 503."""
UNREACHABLE = "Failed to reach API"
"""Beginning of the message of the RuntimeError that Prefect raises if it cannot connect at the start."""


def exit_if_unreachable(has_ended: threading.Event, seconds: float) -> None:
    """Exit with a message and exit code 1 once the server has not responded for *seconds*.

    Call this after the stages. It returns at once, and a thread watches the server until *has_ended* is set.
    """
    threading.Thread(target=_watch, args=(has_ended, seconds), name="server-outage", daemon=True).start()


def wait_for_server(seconds: float, warn: Callable[[str], None]) -> None:
    """Return when the server responds, or after *seconds*; *warn* receives a message if it must wait."""
    if _is_responding():
        return
    end = time.monotonic() + seconds
    warn(
        f"the Prefect server at {describe_url()} does not respond: waiting up to {seconds:g} s to report "
        "the run"
    )
    while not _is_responding() and time.monotonic() < end:
        time.sleep(PAUSE_SECONDS)


def outage_seconds() -> float:
    """Return the value of the environment variable `VARIABLE`. Raises `ParamsError` unless it is a number."""
    return read_seconds(VARIABLE, DEFAULT_SECONDS)


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


def outage_message() -> str:
    """Return the message for a server that became unreachable during the run."""
    return (
        f"the Prefect server at {describe_url()} became unreachable, so it has no final state of this run. "
        "DVC has recorded the finished stages. Run `learner status` to see them"
    )


@contextmanager
def explain_api_errors() -> Iterator[None]:
    """Raise `StageError` if the server refuses a request of the block or is unreachable when it begins."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        advice = ". Check PREFECT_API_KEY or PREFECT_API_AUTH_STRING" if code in (401, 403) else ""
        raise StageError(
            f"the Prefect API at {hide_passwords(str(error.request.url))} responded with HTTP {code}{advice}"
        ) from error
    except RuntimeError as error:
        if not str(error).startswith(UNREACHABLE):
            raise
        raise StageError(str(error).partition("\n")[0]) from error


def _watch(has_ended: threading.Event, seconds: float) -> None:
    last_response = time.monotonic()
    while not has_ended.wait(PROBE_SECONDS):
        if _is_responding():
            last_response = time.monotonic()
        elif time.monotonic() - last_response > seconds:
            with suppress(OSError):  # the terminal was closed
                print_error(f"\nerror: {outage_message()}")
            os._exit(1)


def _is_responding() -> bool:
    try:
        with urllib.request.urlopen(f"{PREFECT_API_URL.value()}/health", timeout=PROBE_SECONDS):  # noqa: S310
            return True
    except urllib.error.HTTPError as error:
        return error.code < HTTPStatus.INTERNAL_SERVER_ERROR
    except (OSError, ValueError):
        return False


def describe_url() -> str:
    """Return the address of the API without a password."""
    return hide_passwords(PREFECT_API_URL.value() or "")
