"""The sweep: plan the points, run those without an experiment, report each, and compare all."""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from pipeline.comparison.runs import select_metrics
from pipeline.engine.project_copy import FrozenProject, find_untracked_code, freeze, remove_orphaned
from pipeline.project.inputs import find_untracked_files
from pipeline.project.lockfile import LOCKFILE, check_lockfile, repair_lockfiles
from pipeline.project.revisions.dvc_checks import remove_damaged_outputs
from pipeline.project.yaml_files import read_definition, read_mapping
from pipeline.sweep.executors import Executor, Report, run_jobs
from pipeline.sweep.job import SWEEP_LOCK_SUFFIX, Job, remove_leftovers
from pipeline.sweep.plan import PARAMS, PlannedPoint, Point, check_plan, plan_points
from pipeline.sweep.point_process import FIRST_POINT_SUFFIX, POINT_SERVERS, SERVERS_FOLDER
from pipeline.sweep.progress import (
    SweepProgress,
    collect_points,
    repeats_table,
    result_table,
    show_live_table,
)
from pipeline.sweep.search import Search
from pipeline.sweep.stopping import (
    RULES,
    Curves,
    Rungs,
    check_varying,
    default_metric,
    find_metric,
    plan_rungs,
)
from stages.contracts.errors import ParamsError, StageError, StageFailedError
from stages.contracts.printing import print_error, print_line, print_text
from stages.runs import prune_after_run
from stages.runs.layout import RUNGS_SUFFIX, RUNS_FOLDER, SWEEP_FOLDER
from stages.system.file_lock import hold_lock


@dataclass(frozen=True)
class PointResult:
    """The result of a point that ran, or that had finished before."""

    name: str
    """The name of its experiment."""
    error: str
    """The reason of its failure; empty if it has an experiment."""
    stopped: int | None = None
    """The epoch after which it was stopped early; None if it trained to its last epoch."""


Runner = Callable[[Sequence[Job], Executor, Report], None]
"""A function that runs jobs on an executor and reports the error of each, or None."""


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs its points."""

    executor: Executor
    run: Runner
    share_gpus: bool
    stop: str | None
    """A key of `RULES`: stop bad points early; None runs every point to its last epoch."""
    metric: str | None
    """The metric to rank points by; by default the first one of the valid split with a known direction."""
    has_repeats: bool
    """True to print the means of the points that differ in their seeds only."""
    output: IO[str]
    """The stream that the table of results is written to."""


def sweep(source: Search | Sequence[Point], options: SweepOptions) -> list[PointResult]:
    """Run the points of *source* without an experiment, each as an experiment, and print a table of all.

    The trials of a search run batch by batch. Raises `StageFailedError` if a point failed, after the others,
    and `ParamsError` before anything runs, or if the points cannot be ranked.
    """
    base = _freeze()
    search = source if isinstance(source, Search) else None
    points = source.ask() if isinstance(source, Search) else source
    with _sweep_lock(base) as lock:
        running = _Sweep(base, options, lock, options.metric)
        rungs = _plan_rungs(base, points, search, options.stop) if options.stop else None
        while points:
            if search:
                first = search.drawn - search.size + 1
                print_text(f"trials {first} to {search.drawn} of {search.options.trials}:")
            ran = running.run(points, rungs)
            if search is None:
                break
            running.metric, curves = running.read_curves(dict(enumerate(ran)))  # the same for all batches
            search.tell([(curves[number], result.stopped) for number, result in enumerate(ran)])
            points = search.ask()
    running.conclude()
    return list(running.results.values())


def _freeze() -> FrozenProject:
    base = _freeze_readable()
    remove_damaged_outputs(base.root)
    if files := find_untracked_code(base.root):
        print_error(
            f"git does not track {', '.join(files)}, so no point uses them. Run git add for each; "
            "no commit is needed"
        )
    return base


def _freeze_readable() -> FrozenProject:
    """Return the project at this moment.

    Raises `StageError` if a file of its pipeline cannot be read, or would not be in the copies of the points.
    """
    repair_lockfiles()
    base = freeze(Path.cwd())
    check_lockfile(LOCKFILE)
    if untracked := find_untracked_files(read_definition()):
        raise ParamsError("\n".join(untracked))
    if (params := Path(PARAMS)).exists():
        read_mapping(params)
    return base


def _plan_rungs(base: FrozenProject, points: Sequence[Point], search: Search | None, stop: str) -> Rungs:
    rule = RULES[stop]
    if search:
        check_varying(search.varying)
    epochs = plan_rungs(rule, base, points)
    if search is None or not rule.pruner:
        return Rungs(epochs, rule.select)
    search.use_pruner(rule, epochs)
    return Rungs(epochs, search.select)


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
        for suffix in (SWEEP_LOCK_SUFFIX, FIRST_POINT_SUFFIX, RUNGS_SUFFIX):
            path.with_suffix(suffix).unlink(missing_ok=True)
        # those of a killed sweep, in which its servers still worked when this one began
        remove_orphaned(base.root / SERVERS_FOLDER)


@dataclass
class _Sweep:
    """A sweep in progress."""

    base: FrozenProject
    options: SweepOptions
    lock: Path
    metric: str | None
    """The metric to rank points by, or None for the default."""
    results: dict[str, PointResult] = field(default_factory=dict)
    """The result of each point that has finished, by the name of its experiment."""

    def run(self, points: Sequence[Point], rungs: Rungs | None) -> list[PointResult]:
        """Run *points*, with *rungs* up to the epoch of each rung, and return their results in their order.

        Raises `ParamsError` if these are the first points, and none has valid params.
        """
        if rungs:
            with hold_lock(self.lock.with_suffix(RUNGS_SUFFIX)):
                results = self._run_rungs(points, rungs)
            prune_after_run(self.base.root / RUNS_FOLDER)
            return results
        return self._run_planned(plan_points(self.base, points))

    def _run_planned(self, planned: Sequence[PlannedPoint]) -> list[PointResult]:
        """Run the points of *planned* without an experiment, and return the result of each."""
        if not self.results:
            check_plan(planned)
        executor, progress = self.options.executor, SweepProgress(len(planned))
        print_text(f"{_count(planned)}, {executor.width} at a time on {executor.name}")
        for point in planned:
            if point.is_done:
                progress.add_done(point.name)
            elif point.mistake:
                progress.add_failed(point.name, point.mistake)
        waiting = [point for point in planned if not point.is_done and not point.mistake]
        jobs = [Job(self.base, point, self.lock, self.options.share_gpus) for point in waiting]
        try:
            _check_metric(self.base, progress, self.metric)
            if jobs:
                progress.start()
                report = partial(_report, self.base, progress, self.metric)  # Dask copies it to its workers
                with show_live_table(progress, jobs, self.metric):
                    self.options.run(jobs, executor, report)
        except ParamsError as error:
            self._record(progress, [*progress.done, *progress.failed])
            self.conclude(str(error))
        except StageError:
            raise
        except BaseException:  # usually a signal
            counts = f"{len(progress.done)} of {progress.total}"
            print_text(f"{counts} points are done. Run the same command again to resume")
            raise
        return self._record(progress, [point.name for point in planned])

    def _record(self, progress: SweepProgress, names: Sequence[str]) -> list[PointResult]:
        """Record the results of the points *names*, which have finished, and return them."""
        ran = [PointResult(name, progress.failed.get(name, "")) for name in names]
        self.results |= {result.name: result for result in ran}
        return ran

    def _run_rungs(self, points: Sequence[Point], rungs: Rungs) -> list[PointResult]:
        """Run the points up to the epoch of each rung, the better ones of a rung up to the next one."""
        total = rungs.epochs[-1]
        results: dict[int, PointResult] = {}
        active: Collection[int] = range(len(points))
        for epochs in rungs.epochs:
            planned = plan_points(self.base, points, epochs)
            print_text(f"up to epoch {epochs} of {total}:")
            ran = self._run_planned([planned[number] for number in active])
            results |= zip(active, ran, strict=True)
            if epochs == total:
                break
            _, curves = self.read_curves({number: results[number] for number in active})
            chosen = rungs.select(curves, epochs)
            for number in set(active).difference(chosen):
                results[number] = replace(results[number], stopped=epochs)
            active = chosen
            if not active:
                break
        self.results |= {result.name: result for result in results.values()}
        return list(results.values())

    def read_curves(self, results: Mapping[int, PointResult]) -> tuple[str | None, Curves]:
        """Return the metric that ranks the points, and its curve of each point; None for one that failed.

        Raises as `collect_points` and `find_metric` do, after the table of the results is printed.
        """
        trained = [result.name for result in results.values() if not result.error]
        if not trained:
            return self.metric, dict.fromkeys(results)
        compared = collect_points(self.base, trained)
        try:
            metric = find_metric(compared, self.metric)
        except ParamsError as error:
            self.conclude(str(error))
            raise
        curves = {run.name: run.metrics.get(metric) for run in compared.runs}
        return metric, {number: curves.get(result.name) for number, result in results.items()}

    def conclude(self, mistake: str = "") -> None:
        """Print the table of the results.

        Raises `ParamsError` if the metric is unknown or for another *mistake*, and `StageFailedError` for
        points that failed, with the reason of each.
        """
        results = self.results.values()
        if trained := [result.name for result in results if not result.error]:
            compared = collect_points(self.base, trained)
            shown = default_metric(compared)
            if self.metric and not mistake:
                try:
                    shown = find_metric(compared, self.metric)
                except ParamsError as error:
                    mistake = str(error)
            draw = repeats_table if self.options.has_repeats else result_table
            print_text(f"\n{draw(compared, shown)}", self.options.output, end="")
        lines = [mistake] if mistake else []
        if reasons := [f"{result.name}: {result.error}" for result in results if result.error]:
            lines += [f"{len(reasons)} of {_count(results)} failed", *reasons]
        if mistake:
            raise ParamsError("\n".join(lines))
        if lines:
            raise StageFailedError("\n".join(lines))


def _report(
    base: FrozenProject, progress: SweepProgress, metric: str | None, job: Job, error: Exception | None
) -> None:
    """Report the outcome of *job*. Raises `ParamsError` if it is the first experiment, without *metric*."""
    progress.report(job.point.name, error)
    if error is None and len(progress.done) == 1:
        _check_metric(base, progress, metric)


def _check_metric(base: FrozenProject, progress: SweepProgress, metric: str | None) -> None:
    """Raise `ParamsError` if the first finished point lacks *metric*, so that no more points train."""
    if metric and progress.done:
        compared = collect_points(base, progress.done[:1])
        if compared.metrics:  # none if the curves are not cached
            select_metrics(compared, [metric])


def _count(points: Collection[object]) -> str:
    return f"{len(points)} point{'s' if len(points) != 1 else ''}"


def run_without_flow(jobs: Sequence[Job], executor: Executor, report: Report) -> None:
    """Run *jobs* on *executor* without recording them in Prefect."""
    with executor.start() as submit:
        run_jobs(jobs, executor.width, submit, report)


def print_plan(points: Sequence[Point], stop: str | None) -> dict[str, str]:
    """Print the points that a sweep of *points* would run, without running any; with *stop*, the first rung.

    Return the state of each by its name.

    Raises `ParamsError` with each point whose params are not valid, after all are printed.
    """
    base = _freeze_readable()
    epochs = plan_rungs(RULES[stop], base, points)[0] if stop else None
    planned = plan_points(base, points, epochs)
    check_plan(planned)
    states = {point.name: "done" if point.is_done else "to run" for point in planned}
    for point in planned:
        print_line(f"{point.name}: {'not valid' if point.mistake else states[point.name]}")
    if mistakes := [f"{point.name}: {point.mistake}" for point in planned if point.mistake]:
        count = f"{len(mistakes)} of {_count(planned)} cannot run:"
        raise ParamsError("\n".join([count, *mistakes]))
    return states
