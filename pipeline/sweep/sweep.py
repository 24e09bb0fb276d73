"""The sweep: plan the points, run those without an experiment, report each, and compare all."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typer

from pipeline.comparison.collection import collect_runs
from pipeline.engine.project_copy import FrozenProject, find_untracked_code, freeze, remove_orphaned
from pipeline.revisions.cache_content import remove_damaged_outputs
from pipeline.sweep.executors import Executor
from pipeline.sweep.job import SWEEP_LOCK_SUFFIX, Job, remove_leftovers
from pipeline.sweep.plan import PlannedPoint, Point, plan_points
from pipeline.sweep.point_process import FIRST_POINT_SUFFIX, POINT_SERVERS, SERVERS_FOLDER
from pipeline.sweep.results import result_table
from pipeline.sweep.scheduler import Report, run_jobs
from pipeline.sweep.stopping import RULES, check_epochs, default_metric, find_metric, select_points
from stages.contracts.errors import ParamsError, StageError, StageFailedError
from stages.contracts.text import format_duration
from stages.runs.layout import SWEEP_FOLDER


@dataclass
class SweepProgress:
    """The outcomes of the points, printed as they finish."""

    total: int
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    before: int = 0
    """Points that had finished before the first one ran."""
    began: float = field(default_factory=time.monotonic)

    def report(self, job: Job, error: Exception | None) -> None:
        """Record that *job* finished, with *error* or with an experiment."""
        if error is None:
            self.add_done(job.name, f"done{self._time_left()}")
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

    def start(self) -> None:
        """Record that the points which are neither done nor failed run from now on."""
        self.before, self.began = len(self.done) + len(self.failed), time.monotonic()

    def _time_left(self) -> str:
        """Return the time that the other points take, if they take as long as those that have run."""
        finished = len(self.done) + len(self.failed) + 1
        left = (time.monotonic() - self.began) * (self.total - finished) / (finished - self.before)
        return f", about {format_duration(left)} left" if finished < self.total else ""

    def _print(self, name: str, outcome: str) -> None:
        typer.echo(f"[{len(self.done) + len(self.failed)}/{self.total}] {name}: {outcome}")


Runner = Callable[[Sequence[Job], Executor, Report], None]
"""A function that runs jobs on an executor and reports the error of each, or None."""


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs its points."""

    executor: Executor
    run: Runner
    share_gpus: bool = False
    stop: str | None = None
    """A key of `RULES`: stop bad points early; None runs every point to its last epoch."""
    metric: str | None = None
    """The metric to rank points by; by default the first one of the valid split with a known direction."""


def sweep(points: Sequence[Point], options: SweepOptions) -> None:
    """Run the points without an experiment, each as an experiment, and print a table of all.

    Raises `StageFailedError` if a point failed, after the others, and `ParamsError` before anything runs.
    """
    base = freeze(Path.cwd())
    remove_damaged_outputs(base.root)
    _warn(base)
    with _sweep_lock(base) as lock:
        if options.stop is None:
            progress = _run_points(base, plan_points(base, points), options, lock)
        else:
            progress = _run_rungs(base, points, options, lock)
    _conclude(progress, options.metric)


@contextmanager
def _sweep_lock(base: FrozenProject) -> Iterator[Path]:
    """Yield the path of the lock file of a new sweep, and end the servers of its points afterwards."""
    folder = base.root / SWEEP_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    remove_orphaned(base.root / SERVERS_FOLDER)
    path = folder / f"{secrets.token_hex(4)}{SWEEP_LOCK_SUFFIX}"
    try:
        with closing(POINT_SERVERS):
            yield path
    finally:
        for suffix in (SWEEP_LOCK_SUFFIX, FIRST_POINT_SUFFIX):
            path.with_suffix(suffix).unlink(missing_ok=True)


def _run_points(
    base: FrozenProject, planned: Sequence[PlannedPoint], options: SweepOptions, lock: Path
) -> SweepProgress:
    """Run the points of *planned* without an experiment, and return the outcomes of all."""
    progress = SweepProgress(len(planned))
    typer.echo(f"{_count(planned, 'point')}, {options.executor.width} at a time on {options.executor.name}")
    for each in planned:
        if each.is_done:
            progress.add_done(each.name, "done before")
        elif each.mistake:
            progress.add_failed(each.name, each.mistake)
    if jobs := _jobs(base, planned, lock, share_gpus=options.share_gpus):
        progress.start()
        with _report_interruption(progress):
            options.run(jobs, options.executor, progress.report)
    return SweepProgress(
        progress.total, [each.name for each in planned if each.name in progress.done], progress.failed
    )


def _run_rungs(
    base: FrozenProject, points: Sequence[Point], options: SweepOptions, lock: Path
) -> SweepProgress:
    """Run the points up to the epoch of each rung, the better ones of a rung up to the next one."""
    rule, total = RULES[options.stop or ""], check_epochs(base, points)
    all_points = SweepProgress(len(points))
    names: Sequence[str] | None = None
    for epochs in rule.rungs(total):
        planned = plan_points(base, points, epochs)
        planned = [each for each in planned if names is None or each.name in names]
        typer.echo(f"up to epoch {epochs} of {total}:")
        progress = _run_points(base, planned, options, lock)
        all_points.failed |= progress.failed
        all_points.done += [name for name in progress.done if name not in all_points.done]
        if not progress.done:
            break
        if epochs < total:
            compared = collect_runs(progress.done)
            metric = find_metric(compared, options.metric)
            names = select_points(compared, [each.name for each in planned], metric, epochs, rule)
    return all_points


def run_without_flow(jobs: Sequence[Job], executor: Executor, report: Report) -> None:
    """Run *jobs* on *executor* without recording them in Prefect."""
    with executor.start() as submit:
        run_jobs(jobs, executor.width, submit, report)


def print_plan(points: Sequence[Point], stop: str | None = None) -> None:
    """Print the points that a sweep of *points* would run, without running any; with *stop*, the first rung.

    Raises `ParamsError` with each point whose params are not valid, after all are printed.
    """
    base = freeze(Path.cwd())
    planned = plan_points(base, points, RULES[stop].rungs(check_epochs(base, points))[0] if stop else None)
    for each in planned:
        state = "done" if each.is_done else "not valid" if each.mistake else "to run"
        typer.echo(f"{each.name}: {state}")
    if mistakes := [f"{each.name}: {each.mistake}" for each in planned if each.mistake]:
        count = f"{len(mistakes)} of {_count(planned, 'point')} cannot run:"
        raise ParamsError("\n".join([count, *mistakes]))


def _jobs(base: FrozenProject, planned: Sequence[PlannedPoint], lock: Path, *, share_gpus: bool) -> list[Job]:
    return [
        Job(
            base,
            each.name,
            each.point.set_params,
            each.params,
            lock,
            gpu=each.can_use_gpu and not share_gpus,
            run=each.run,
            replaces=each.replaces,
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


def _conclude(progress: SweepProgress, metric: str | None) -> None:
    if progress.done:
        compared = collect_runs(progress.done)
        shown = find_metric(compared, metric) if metric else default_metric(compared)
        typer.echo()
        typer.echo(result_table(compared, shown), nl=False)
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
