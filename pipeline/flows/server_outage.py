"""A flow whose server has gone ends all the same: Prefect's farewell to it has a bound.

Prefect tells the server how a run ended, and tries again and again where nobody answers. By then the stages
are done and DVC has recorded them, so nothing is lost by leaving.
"""

import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.settings import PREFECT_API_URL

from pipeline.flows.timeouts import read_seconds
from stages.contracts.errors import StageError

VARIABLE = "LEARNER_GOODBYE_SECONDS"
DEFAULT_SECONDS = 60.0
PROBE_SECONDS = 2.0
UNREACHABLE = "Failed to reach API"
"""Begins the message of the RuntimeError that Prefect raises if it cannot connect at the start."""


def exit_if_unreachable(over: threading.Event, seconds: float) -> None:
    """The stages are through: from now on this process does not wait for a server that has gone.

    It ends with a message and exit code 1 once the server has not answered for *seconds*, unless *over* is
    set before.
    """
    threading.Thread(target=_watch, args=(over, seconds), name="goodbye", daemon=True).start()


def outage_seconds() -> float:
    """What `VARIABLE` says. Raises `ParamsError` where that is no number."""
    return read_seconds(VARIABLE, DEFAULT_SECONDS)


def outage_message() -> str:
    """What to say where the server has gone."""
    return (
        f"the Prefect server at {PREFECT_API_URL.value()} has gone, so it does not know how this ended. "
        "What the stages made is recorded by DVC: `learner status` shows it"
    )


@contextmanager
def explain_api_errors() -> Iterator[None]:
    """Raise `StageError` if the server refuses a request of the block or is unreachable when it begins."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        advice = ": check PREFECT_API_KEY or PREFECT_API_AUTH_STRING" if code in (401, 403) else ""
        raise StageError(
            f"the Prefect API at {error.request.url} responded with HTTP {code}{advice}"
        ) from error
    except RuntimeError as error:
        if not str(error).startswith(UNREACHABLE):
            raise
        raise StageError(str(error).partition("\n")[0]) from error


def _watch(over: threading.Event, seconds: float) -> None:
    seen = time.monotonic()
    while not over.wait(PROBE_SECONDS):
        if _answers():
            seen = time.monotonic()
        elif time.monotonic() - seen > seconds:
            sys.stderr.write(f"\nerror: {outage_message()}\n")
            sys.stderr.flush()
            os._exit(1)


def _answers() -> bool:
    try:
        with urllib.request.urlopen(f"{PREFECT_API_URL.value()}/health", timeout=PROBE_SECONDS):  # noqa: S310
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
