"""A sweep as a Prefect flow: a task run for each point, on the task runner of the executor."""

from collections.abc import Sequence
from errno import EDQUOT, ENOSPC
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from pipeline.flows import prefect_patches
from pipeline.flows.artifacts import API_ERRORS
from pipeline.flows.run_registry import register_this_run
from pipeline.flows.task_run import hide_expected_errors
from pipeline.sweep.executors import Executor, Report, run_jobs
from pipeline.sweep.job import Job, run_job
from stages.contracts.errors import StageError, StageFailedError


class PointsFailedError(StageFailedError):
    """Points of the sweep that failed; Prefect shows it as the reason of the state Failed."""


@task(name="experiment", cache_policy=NO_CACHE)
def experiment_task(job: Job) -> None:
    """Run one point."""
    prefect_patches.apply()  # also in a worker
    hide_expected_errors()
    run_job(job)


@flow(name="learner-sweep", validate_parameters=False)
def sweep_flow(jobs: Sequence[Job], width: int, report: Report) -> None:
    """Run every point; the flow fails if one does, after the others have finished."""
    failed = []

    def note_and_report(job: Job, error: Exception | None) -> None:
        if error:
            failed.append(job.point.name)
        report(job, error)

    def submit(job: Job) -> Any:
        return experiment_task.with_options(task_run_name=job.point.name).submit(job)

    hide_expected_errors()
    register_this_run()
    run_jobs(jobs, width, submit, note_and_report)
    if failed:
        raise PointsFailedError(f"{len(failed)} of {len(jobs)} points failed: {', '.join(failed)}")


def run_in_flow(jobs: Sequence[Job], executor: Executor, report: Report) -> None:
    """Run *jobs* as a flow of the configured Prefect API; *report* gets the error of each job, or None.

    Raises `StageError` if the API or the executor becomes unreachable.
    """
    prefect_patches.apply()
    try:
        sweep_flow.with_options(task_runner=executor.task_runner())(jobs, executor.width, report)
    except PointsFailedError:
        return  # each one was reported
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT):
            raise
        raise StageError(
            f"the workers of {executor.name} cannot be reached: {error}. Run the same command again to resume"
        ) from error
    except API_ERRORS as error:
        raise StageError(
            f"the Prefect API became unreachable during the sweep ({error}). Finished experiments are kept. "
            "Run the same command again to resume"
        ) from error
