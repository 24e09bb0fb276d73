"""The flow from the command line, whatever becomes of the server that records it."""

import httpx

from pipeline.flow import Report, learner_flow
from pipeline.goodbye import bounded_goodbye, gone_message
from stages.contracts.errors import StageError


def run_flow(report: Report) -> None:
    """Bring every stage up to date as a recorded flow; *report* hears of each one's outcome.

    Raises `StageError` where the server goes away; the process ends then in a bounded time.
    """
    try:
        with bounded_goodbye() as through:
            learner_flow(report, through)
    except httpx.TransportError as error:
        raise StageError(gone_message()) from error
