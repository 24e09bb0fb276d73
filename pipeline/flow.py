"""The flow: the five tasks in order, each through DVC in this process."""

import time
from collections.abc import Callable, Iterable

from prefect import flow

from pipeline.bodies import STAGES
from pipeline.flows.recorded import run_recorded
from pipeline.flows.run_registry import register_this_run
from pipeline.reproduce import Outcome, reproduce
from pipeline.tasks import TASKS, hide_expected_tracebacks

LEAST_SECONDS = 0.01
"""A time-out of none is none at all."""

Report = Callable[[str, Outcome], None]


@flow(name="learner", validate_parameters=False)
def learner_flow(report: Report, through: Callable[[], None]) -> None:
    """Bring every stage up to date; *report* hears of each one's outcome, *through* is called at the end."""
    hide_expected_tracebacks()
    register_this_run()
    try:
        bring_up_to_date(STAGES, report)
    finally:
        through()


def bring_up_to_date(names: Iterable[str], report: Report, deadline: float | None = None) -> None:
    """Bring the stages *names* up to date, within a flow run.

    The tasks are called, not submitted: a task in a thread of its own would never see a signal. One that is
    at work at *deadline*, on the monotonic clock, saves and is timed out.
    """

    def door(name: str) -> Outcome:
        outcome = reproduce(name, run=run_recorded)
        report(name, outcome)
        return outcome

    for name in names:
        left = None if deadline is None else max(LEAST_SECONDS, deadline - time.monotonic())
        TASKS[name].with_options(timeout_seconds=left)(door)
