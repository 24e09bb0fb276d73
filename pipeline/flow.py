"""The flow: the five tasks in order, each through DVC in this process."""

from collections.abc import Callable

from prefect import flow, get_run_logger

from pipeline.reproduce import Outcome, reproduce
from pipeline.tasks import TASKS, hide_expected_tracebacks
from stages.renderers import LogRenderer

Report = Callable[[str, Outcome], None]


@flow(name="learner", validate_parameters=False)
def learner_flow(report: Report) -> None:
    """Bring every stage up to date; *report* hears of each one's outcome.

    The tasks are called, not submitted: a task in a thread of its own would never see a signal.
    """

    def door(name: str) -> Outcome:
        outcome = reproduce(name, LogRenderer(get_run_logger()))
        report(name, outcome)
        return outcome

    hide_expected_tracebacks()
    for each in TASKS.values():
        each(door)
