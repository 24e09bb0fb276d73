"""The flow from the command line, whatever becomes of the server that records it."""

import threading
from functools import partial

import httpx

from pipeline.flow import Report, learner_flow
from pipeline.flows.goodbye import begin_goodbye, gone_message, goodbye_seconds
from stages.contracts.errors import StageError


def run_flow(report: Report) -> None:
    """Bring every stage up to date as a recorded flow; *report* hears of each one's outcome.

    Raises `StageError` where the server goes away; the process ends then in a bounded time.
    """
    over = threading.Event()
    try:
        learner_flow(report, partial(begin_goodbye, over, goodbye_seconds()))
    except httpx.TransportError as error:
        raise StageError(gone_message()) from error
    finally:
        over.set()
