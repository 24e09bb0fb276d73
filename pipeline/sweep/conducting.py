"""The loop of a sweep: so many points at work at a time, whoever does the work."""

import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from pipeline.sweep.job import PAUSE_SECONDS, Job, is_silent
from stages.runs.lock import held


class Future(Protocol):
    """What every engine gives for a point at work."""

    def add_done_callback(self, fn: Callable[[Any], Any], /) -> None:
        """Have *fn* called when it is done."""
        ...

    def result(self) -> Any:
        """What went wrong, if anything. Raises what the job raised, or what became of its worker."""
        ...


Submit = Callable[[Job], Future]
Report = Callable[[Job, Exception | None], None]


def conduct(jobs: Sequence[Job], width: int, submit: Submit, report: Report) -> None:
    """Have *width* of *jobs* at work until all are done; *report* hears how each one ended.

    One that fails stops no other. Where this is broken off, those at work are told, save and leave first.
    """
    if not jobs:
        return
    finished: SimpleQueue[tuple[Job, Future]] = SimpleQueue()
    waiting, active = list(jobs), list[Job]()
    try:
        with held(jobs[0].sweep):
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
            while not is_silent(job.log):
                time.sleep(PAUSE_SECONDS)
        raise
    finally:
        jobs[0].sweep.unlink(missing_ok=True)


def _next(waiting: Sequence[Job], active: Sequence[Job]) -> Job | None:
    """The first that may start: of one run never two, and the second then finds much done."""
    at_work = {job.run for job in active}
    return next((job for job in waiting if job.run not in at_work), None)


def _start(job: Job, submit: Submit, finished: "SimpleQueue[tuple[Job, Future]]") -> None:
    submit(job).add_done_callback(lambda future: finished.put((job, future)))


def _error(future: Future) -> Exception | None:
    try:
        error = future.result()
    except Exception as failure:  # noqa: BLE001  a job's, or of an engine whose worker died: it is the point's alone
        return failure
    return error if isinstance(error, Exception) else None
