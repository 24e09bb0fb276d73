"""The sweep: plan the points, run those without an experiment, report each, and compare all."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typer

from pipeline.comparison.collection import collect_runs
from pipeline.comparison.tables import text_table
from pipeline.engine.project_copy import FrozenProject, find_untracked_code, freeze
from pipeline.revisions.cache_content import remove_damaged_outputs
from pipeline.sweep.executors import Executor
from pipeline.sweep.job import SWEEP_LOCK_SUFFIX, Job, remove_leftovers
from pipeline.sweep.plan import PlannedPoint, Point, plan_points
from pipeline.sweep.point_process import POINT_SERVERS
from pipeline.sweep.scheduler import Report, run_jobs
from stages.contracts.errors import ParamsError, StageError, StageFailedError
from stages.runs.layout import SWEEP_FOLDER


@dataclass
class SweepProgress:
    """The outcomes of the points, printed as they finish."""

    total: int
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def report(self, job: Job, error: Exception | None) -> None:
        """Record that *job* finished, with *error* or with an experiment."""
        if error is None:
            self.add_done(job.name, "done")
        else:
            reason = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self.add_failed(job.name, reason)

    def add_done(self, name: str, outcome: str) -> None:
        """Record that the point *name* has an experiment, and print *outcome*."""
        self.done.append(name)
        self._print(name, outcome)

    def add_failed(self, name: str, reason: str) -> None:
        """Record that the point *name* has no experiment, and print that."""
        self.failed[name] = reason
        self._print(name, "failed")

    def _print(self, name: str, outcome: str) -> None:
        typer.echo(f"[{len(self.done) + len(self.failed)}/{self.total}] {name}: {outcome}")


Runner = Callable[[Sequence[Job], Executor, Report], None]
"""A function that runs jobs on an executor and reports the error of each, or None."""


def sweep(points: Sequence[Point], executor: Executor, run: Runner, *, share_gpus: bool) -> None:
    """Run the points without an experiment by *run*, each as an experiment, and print a table of all.

    Raises `StageFailedError` if a point failed, after the others, and `ParamsError` before anything runs.
    """
    base = freeze(Path.cwd())
    remove_damaged_outputs(base.root)
    planned = plan_points(base, points)
    progress = SweepProgress(len(planned))
    _warn(base)
    typer.echo(f"{_count(planned, 'point')}, {executor.width} at a time on {executor.name}")
    for each in planned:
        if each.is_done:
            progress.add_done(each.name, "done before")
        elif each.mistake:
            progress.add_failed(each.name, each.mistake)
    if jobs := _jobs(base, planned, share_gpus=share_gpus):
        with _report_interruption(progress), closing(POINT_SERVERS):
            run(jobs, executor, progress.report)
    _conclude([each.name for each in planned], progress)


def run_without_flow(jobs: Sequence[Job], executor: Executor, report: Report) -> None:
    """Run *jobs* on *executor* without recording them in Prefect."""
    with executor.start() as submit:
        run_jobs(jobs, executor.width, submit, report)


def print_plan(points: Sequence[Point]) -> None:
    """Print the points that a sweep of *points* would run, without running any.

    Raises `ParamsError` with each point whose params are not valid, after all are printed.
    """
    planned = plan_points(freeze(Path.cwd()), points)
    for each in planned:
        state = "done" if each.is_done else "not valid" if each.mistake else "to run"
        typer.echo(f"{each.name}: {state}")
    if mistakes := [f"{each.name}: {each.mistake}" for each in planned if each.mistake]:
        count = f"{len(mistakes)} of {_count(planned, 'point')} cannot run:"
        raise ParamsError("\n".join([count, *mistakes]))


def _jobs(base: FrozenProject, planned: Sequence[PlannedPoint], *, share_gpus: bool) -> list[Job]:
    folder = base.root / SWEEP_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    sweep_lock = folder / f"{secrets.token_hex(4)}{SWEEP_LOCK_SUFFIX}"
    return [
        Job(
            base,
            each.name,
            each.point.set_params,
            each.params,
            sweep_lock,
            gpu=each.can_use_gpu and not share_gpus,
            run=each.run,
        )
        for each in planned
        if not each.is_done and not each.mistake
    ]


@contextmanager
def _report_interruption(progress: SweepProgress) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not isinstance(error, StageError):  # usually a signal
            typer.echo(
                f"{len(progress.done)} of {progress.total} points are done. "
                "Run the same command again to resume"
            )
        raise


def _conclude(names: Sequence[str], progress: SweepProgress) -> None:
    if progress.done:
        typer.echo()
        typer.echo(text_table(collect_runs([name for name in names if name in progress.done])), nl=False)
    if progress.failed:
        reasons = [f"{name}: {reason}" for name, reason in progress.failed.items()]
        raise StageFailedError(
            "\n".join([f"{len(progress.failed)} of {progress.total} points failed", *reasons])
        )


def _warn(base: FrozenProject) -> None:
    if files := find_untracked_code(base.root):
        typer.echo(
            f"git does not track {', '.join(files)}, so no point uses them. Run git add for each; "
            "no commit is needed",
            err=True,
        )


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) != 1 else ''}"
