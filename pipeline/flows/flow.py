"""The flow: the five tasks in order, each through DVC in this process."""

import time
from collections.abc import Callable, Iterable

from prefect import flow

from pipeline.engine.reproduce import Outcome, reproduce
from pipeline.flows.run_registry import register_this_run
from pipeline.flows.task_run import run_recorded
from pipeline.flows.tasks import TASKS, hide_expected_tracebacks
from pipeline.stage_registry import VERSIONS

LEAST_SECONDS = 0.01
"""Prefect takes a timeout of 0 for no timeout."""

ROUNDING_SECONDS = 0.1

Report = Callable[[str, Outcome], None]


@flow(name="learner", validate_parameters=False)
def learner_flow(report: Report, through: Callable[[], None]) -> None:
    """Bring every stage up to date; *report* hears of each one's outcome, *through* is called at the end."""
    hide_expected_tracebacks()
    register_this_run()
    try:
        bring_up_to_date(VERSIONS, report)
    finally:
        through()


def bring_up_to_date(names: Iterable[str], report: Report, deadline: float | None = None) -> None:
    """Bring the stages *names* up to date, within a flow run.

    The tasks are called, not submitted, because a task in a thread of its own receives no signal. One that is
    in progress at *deadline*, on the monotonic clock, saves. Raises `TimeoutError` with its name then.
    """

    def door(name: str) -> Outcome:
        outcome = reproduce(name, run=run_recorded)
        report(name, outcome)
        return outcome

    for name in names:
        left = None if deadline is None else max(LEAST_SECONDS, round(deadline - time.monotonic(), 1))
        try:
            TASKS[name].with_options(timeout_seconds=left)(door)
        except TimeoutError as error:
            if not is_over(deadline):
                raise
            raise TimeoutError(f"{name} was interrupted") from error


def is_over(deadline: float | None) -> bool:
    """Return whether *deadline*, on the monotonic clock, has passed: user code raises `TimeoutError` too."""
    return deadline is not None and time.monotonic() >= deadline - ROUNDING_SECONDS
