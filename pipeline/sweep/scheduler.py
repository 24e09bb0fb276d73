"""The scheduler of a sweep: a limited number of points in progress at a time, on any executor."""

import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from pipeline.sweep.job import PAUSE_SECONDS, Job, is_unlocked
from stages.system.file_lock import hold_lock


class Future(Protocol):
    """A point in progress, as every executor returns it."""

    def add_done_callback(self, fn: Callable[[Any], Any], /) -> None:
        """Call *fn* when the point has finished."""
        ...

    def result(self) -> Any:
        """Return the error of the point, if any. Raises what the job raised, or the error of its worker."""
        ...


Submit = Callable[[Job], Future]
Report = Callable[[Job, Exception | None], None]


def run_jobs(jobs: Sequence[Job], width: int, submit: Submit, report: Report) -> None:
    """Run *jobs*, *width* at a time, and call *report* with the error of each, or None, when it finishes.

    A failed job stops no other. If this function is interrupted, the jobs in progress are stopped and save
    before it returns.
    """
    if not jobs:
        return
    finished: SimpleQueue[tuple[Job, Future]] = SimpleQueue()
    waiting, active = list(jobs), list[Job]()
    try:
        with hold_lock(jobs[0].sweep_lock):
            while waiting or active:
                while len(active) < width and (job := _next(waiting, active)):
                    waiting.remove(job)
                    active.append(job)
                    _start(job, submit, finished)
                job, future = finished.get()
                active.remove(job)
                report(job, _error(future))
    except BaseException:
        for job in active:
            while not is_unlocked(job.log):
                time.sleep(PAUSE_SECONDS)
        raise


def _next(waiting: Sequence[Job], active: Sequence[Job]) -> Job | None:
    """Return the first job that may start: never two of one run, because the second resumes the first."""
    runs = {job.run for job in active}
    return next((job for job in waiting if job.run not in runs), None)


def _start(job: Job, submit: Submit, finished: "SimpleQueue[tuple[Job, Future]]") -> None:
    submit(job).add_done_callback(lambda future: finished.put((job, future)))


def _error(future: Future) -> Exception | None:
    try:
        error = future.result()
    except Exception as failure:  # noqa: BLE001  of the job or of its worker: it concerns this point only
        return failure
    return error if isinstance(error, Exception) else None
