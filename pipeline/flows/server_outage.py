"""A bound on the wait of a finished flow for an unreachable Prefect server.

Prefect reports the final state of a run to the server, and retries for a long time if the server does not
respond. By then DVC has recorded the stages, so the process can exit without loss.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TypeGuard

import httpx
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_RETRY_EXTRA_CODES,
)

from pipeline.flows.artifacts import API_ERRORS
from pipeline.flows.prefect_api import probe
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.fields import MAX_SECONDS
from stages.contracts.printing import print_error
from stages.contracts.text import hide_passwords

RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""Environment variable that Prefect sets in a process that it starts for one run."""
VARIABLE = "LEARNER_GOODBYE_SECONDS"
DEFAULT_SECONDS = 25.0
"""Default time without a response after which a run ends without a report."""
PROBE_SECONDS = 5.0
"""The time limit of a probe, by which a run may end later."""
PAUSE_SECONDS = 0.2
RETRIED_CODES = "500,504"
"""Statuses after which Prefect's client repeats a request for a minute, as after 502 and 503."""
QUICK_REQUESTS = {
    PREFECT_CLIENT_RETRY_EXTRA_CODES: RETRIED_CODES,
    PREFECT_CLIENT_MAX_RETRIES: 1,
    PREFECT_API_REQUEST_TIMEOUT: 14.0,
}
"""The settings with which a request fails within half a minute: two attempts, and a pause of two seconds.

More attempts need a shorter timeout, which a busy server exceeds.
"""


class UnrecordedRunError(StageError):
    """A server that does not let a run begin, which can run without a record."""


def exit_if_unreachable() -> None:
    """Exit with a message and exit code 1 once the server has not responded for `outage_seconds`.

    This returns at once, and a thread watches the server.
    """
    threading.Thread(target=_watch, daemon=True).start()


def wait_for_server(warn: Callable[[str], None]) -> bool:
    """Return True when the server responds, and False when it has not for `outage_seconds` in all calls.

    *warn* receives one message if it must wait.
    """
    url, seconds = describe_url(), outage_seconds()
    while probe(str(PREFECT_API_URL.value()), PROBE_SECONDS) is not None:
        if url not in _outages:
            _outages[url] = time.monotonic()
            warn(
                f"the Prefect server at {url} does not respond: waiting up to {seconds:g} s to report it. "
                "After that, the next run in this folder reports this one"
            )
        if time.monotonic() - _outages[url] > seconds:
            return False
        time.sleep(PAUSE_SECONDS)
    _outages.pop(url, None)
    return True


def has_given_up() -> bool:
    """Return whether the server did not respond when this process last waited for it."""
    return describe_url() in _outages


_outages: dict[str, float] = {}
"""The time on the monotonic clock since which each server has not responded."""


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
def explain_api_errors(has_begun: threading.Event) -> Iterator[None]:
    """Raise `StageError` if the server refuses a request of the block.

    Raises `UnrecordedRunError` if the server does not let the run of the block begin, which sets *has_begun*.
    """
    try:
        yield
    except API_ERRORS as error:
        if is_refusal(error):
            code = error.response.status_code
            advice = ". Check PREFECT_API_KEY or PREFECT_API_AUTH_STRING" if code in (401, 403) else ""
            url = hide_passwords(str(error.request.url))
            raise StageError(f"the Prefect API at {url} responded with HTTP {code}{advice}") from error
        if has_begun.is_set():
            raise
        raise UnrecordedRunError(
            f"the Prefect server at {describe_url()} does not respond as it should ({summarize(error)}), so "
            "this run is not recorded there"
        ) from error


def summarize(error: Exception) -> str:
    """Return the first line of *error* without a password."""
    return hide_passwords(str(error).partition("\n")[0]) or type(error).__name__


def is_refusal(error: Exception) -> TypeGuard[httpx.HTTPStatusError]:
    """Return whether *error* is a response with which the server refuses a request, as without a login."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error


def _watch() -> None:
    while wait_for_server(warn=lambda _: None):
        time.sleep(PAUSE_SECONDS)
    exit_with_outage()


def exit_with_outage() -> NoReturn:
    """Exit at once with a message and exit code 1."""
    with suppress(OSError):  # the terminal was closed
        print_error(f"\nerror: {outage_message()}")
    os._exit(1)


def describe_url() -> str:
    """Return the address of the API without a password."""
    return hide_passwords(PREFECT_API_URL.value() or "")
