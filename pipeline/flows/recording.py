"""The flow from the command line, also if the server that records it goes away."""

import threading
from functools import partial

import httpx

from pipeline.flows.flow import Report, learner_flow
from pipeline.flows.server_outage import begin_goodbye, explain_refusal, gone_message, goodbye_seconds
from stages.contracts.errors import StageError


def run_flow(report: Report) -> None:
    """Bring every stage up to date as a recorded flow; *report* receives the outcome of each one.

    Raises `StageError` if the server goes away or refuses the flow; the process then exits in a bounded time.
    """
    over = threading.Event()
    try:
        with explain_refusal():
            learner_flow(report, partial(begin_goodbye, over, goodbye_seconds()))
    except httpx.TransportError as error:
        raise StageError(gone_message()) from error
    finally:
        over.set()
