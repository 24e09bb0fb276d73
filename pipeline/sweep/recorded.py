"""A sweep as a Prefect flow: a task run for each point, on the task runner of the engine."""

from collections.abc import Sequence
from errno import EDQUOT, ENOSPC
from typing import Any

from httpx import HTTPError
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectException
from prefect.task_runners import ThreadPoolTaskRunner

from pipeline.flows.run_registry import register_this_run
from pipeline.flows.tasks import hide_expected_tracebacks
from pipeline.sweep.conducting import Report, conduct
from pipeline.sweep.engines import Crew
from pipeline.sweep.job import Job, run_job
from stages.contracts.errors import StageError, StageFailedError


class PointsFailedError(StageFailedError):
    """Why the flow is Failed, as Prefect shows it."""


@task(name="experiment", cache_policy=NO_CACHE)
def experiment_task(job: Job) -> None:
    """Run one point."""
    hide_expected_tracebacks()  # also in a worker
    run_job(job)


@flow(name="learner-sweep", validate_parameters=False)
def sweep_flow(jobs: Sequence[Job], width: int, report: Report) -> None:
    """Run every point; the flow fails where one does, after the others."""
    failed = []

    def heard(job: Job, error: Exception | None) -> None:
        if error:
            failed.append(job.name)
        report(job, error)

    hide_expected_tracebacks()
    register_this_run()
    conduct(jobs, width, lambda job: experiment_task.with_options(task_run_name=job.name).submit(job), heard)
    if failed:
        raise PointsFailedError(f"{len(failed)} of {len(jobs)} points failed: {', '.join(failed)}")


def run_recorded(jobs: Sequence[Job], crew: Crew, report: Report) -> None:
    """Run *jobs* as a flow of the Prefect API that is configured; of points that fail *report* hears.

    Raises `StageError` if the API goes away or the engine does not respond.
    """
    runner: Any = crew.task_runner() or ThreadPoolTaskRunner(max_workers=crew.width)
    try:
        sweep_flow.with_options(task_runner=runner)(jobs, crew.width, report)
    except PointsFailedError:
        return  # the caller has heard of each one
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT):
            raise
        raise StageError(f"the workers of {crew.engine} were not to be had: {error}") from error
    except (HTTPError, PrefectException) as error:
        raise StageError(
            f"the Prefect API was lost on the way ({error}): experiments that ended are kept, and the same "
            "command goes on"
        ) from error
