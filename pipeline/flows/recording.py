"""The flow from the command line, also if the server that records it goes away."""

import threading
from functools import partial

import httpx

from pipeline.flows.flow import Report, learner_flow
from pipeline.flows.server_outage import (
    exit_if_unreachable,
    explain_api_errors,
    outage_message,
    outage_seconds,
)
from stages.contracts.errors import StageError


def run_flow(report: Report) -> None:
    """Bring every stage up to date as a recorded flow; *report* receives the outcome of each one.

    Raises `StageError` if the server goes away or refuses the flow; the process then exits in a bounded time.
    """
    over = threading.Event()
    try:
        with explain_api_errors():
            learner_flow(report, partial(exit_if_unreachable, over, outage_seconds()))
    except httpx.TransportError as error:
        raise StageError(outage_message()) from error
    finally:
        over.set()
