"""The sweep: plan the points, run those without an experiment, report each, and compare all."""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from pipeline.comparison.runs import select_metrics
from pipeline.engine.project_copy import FrozenProject, find_untracked_code, freeze, remove_orphaned
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
    select_points,
)
from stages.contracts.errors import ParamsError, StageError, StageFailedError
from stages.contracts.printing import print_error, print_line, print_text
from stages.runs.layout import SWEEP_FOLDER


@dataclass(frozen=True)
class PointResult:
    """The result of a point that ran, or that had finished before."""

    name: str
    """The name of its experiment."""
    error: str = ""
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
    share_gpus: bool = False
    stop: str | None = None
    """A key of `RULES`: stop bad points early; None runs every point to its last epoch."""
    metric: str | None = None
    """The metric to rank points by; by default the first one of the valid split with a known direction."""
    has_repeats: bool = False
    """True to print the means of the points that differ in their seeds only."""
    output: IO[str] | None = None
    """The stream that the table of results is written to; None is standard output."""


def sweep(points: Sequence[Point], options: SweepOptions) -> list[PointResult]:
    """Run the points without an experiment, each as an experiment, and print a table of all.

    Raises `StageFailedError` if a point failed, after the others, and `ParamsError` before anything runs.
    """
    base = _freeze()
    with _sweep_lock(base) as lock:
        if options.stop is None:
            planned = plan_points(base, points)
            check_plan(planned)
            results = _run_points(base, planned, options, lock)
        else:
            rule = RULES[options.stop]
            rungs = Rungs(plan_rungs(rule, base, points), partial(select_points, rule))
            results = _run_rungs(base, points, options, lock, rungs)
    _conclude(base, results, options)
    return results


def run_search(search: Search, options: SweepOptions) -> list[PointResult]:
    """Run the trials of *search*, batch by batch, as `sweep` runs points, and print a table of all.

    Raises as `sweep` does, and `ParamsError` if the points of a batch cannot be ranked.
    """
    base = _freeze()
    results = dict[str, PointResult]()
    with _sweep_lock(base) as lock:
        points = search.ask()
        check_plan(plan_points(base, points))
        rungs = _search_rungs(base, points, search, options.stop) if options.stop else None
        while points:
            print_text(
                f"trials {search.drawn - search.size + 1} to {search.drawn} of {search.options.trials}:"
            )
            if rungs:
                ran = _run_rungs(base, points, options, lock, rungs)
            else:
                ran = _run_points(base, plan_points(base, points), options, lock)
            metric, curves = _read_curves(base, dict(enumerate(ran)), options)
            options = replace(options, metric=metric)  # the same one for all batches
            search.tell([(curves[number], result.stopped) for number, result in enumerate(ran)])
            results |= {result.name: result for result in ran}
            points = search.ask()
    _conclude(base, list(results.values()), options)
    return list(results.values())


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
    """Return the project at this moment. Raises `StageError` if a file of its pipeline cannot be read."""
    repair_lockfiles()
    base = freeze(Path.cwd())
    check_lockfile(LOCKFILE)
    read_definition()
    if (params := Path(PARAMS)).exists():
        read_mapping(params)
    return base


def _search_rungs(base: FrozenProject, points: Sequence[Point], search: Search, stop: str) -> Rungs:
    check_varying(search.varying)
    rule = RULES[stop]
    epochs = plan_rungs(rule, base, points)
    if not rule.pruner:
        return Rungs(epochs, partial(select_points, rule))
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
        for suffix in (SWEEP_LOCK_SUFFIX, FIRST_POINT_SUFFIX):
            path.with_suffix(suffix).unlink(missing_ok=True)


def _run_points(
    base: FrozenProject, planned: Sequence[PlannedPoint], options: SweepOptions, lock: Path
) -> list[PointResult]:
    """Run the points of *planned* without an experiment, and return the result of each, in their order."""
    progress = SweepProgress(len(planned))
    print_text(f"{_count(planned, 'point')}, {options.executor.width} at a time on {options.executor.name}")
    for point in planned:
        if point.is_done:
            progress.add_done(point.name)
        elif point.mistake:
            progress.add_failed(point.name, point.mistake)
    report = partial(_report_outcome, base, progress, options.metric)
    try:
        _check_metric(base, progress, options.metric)
        if jobs := _jobs(base, planned, lock, share_gpus=options.share_gpus):
            progress.start()
            with _report_interruption(progress), show_live_table(progress, jobs, options.metric):
                options.run(jobs, options.executor, report)
    except ParamsError as error:
        _conclude(base, _results(progress, [*progress.done, *progress.failed]), options, mistake=str(error))
    return _results(progress, [point.name for point in planned])


def _results(progress: SweepProgress, names: Sequence[str]) -> list[PointResult]:
    return [PointResult(name, progress.failed.get(name, "")) for name in names]


def _report_outcome(
    base: FrozenProject, progress: SweepProgress, metric: str | None, job: Job, error: Exception | None
) -> None:
    """Report the outcome of *job*; raise `ParamsError` if it is the first experiment and has no *metric*."""
    progress.report(job, error)
    if error is None and len(progress.done) == 1:
        _check_metric(base, progress, metric)


def _check_metric(base: FrozenProject, progress: SweepProgress, metric: str | None) -> None:
    """Raise `ParamsError` if the first finished point lacks *metric*, so that no more points train."""
    if metric and progress.done:
        compared = collect_points(base, progress.done[:1])
        if compared.metrics:  # none if the curves are not cached
            select_metrics(compared, [metric])


def _run_rungs(
    base: FrozenProject, points: Sequence[Point], options: SweepOptions, lock: Path, rungs: Rungs
) -> list[PointResult]:
    """Run the points up to the epoch of each rung, the better ones of a rung up to the next one."""
    total = rungs.epochs[-1]
    results: dict[int, PointResult] = {}
    active: Collection[int] = range(len(points))
    for epochs in rungs.epochs:
        planned = plan_points(base, points, epochs)
        print_text(f"up to epoch {epochs} of {total}:")
        ran = _run_points(base, [planned[number] for number in active], options, lock)
        results |= zip(active, ran, strict=True)
        if epochs == total:
            break
        _, curves = _read_curves(base, {number: results[number] for number in active}, options)
        chosen = rungs.select(curves, epochs)
        for number in set(active).difference(chosen):
            results[number] = replace(results[number], stopped=epochs)
        active = chosen
        if not active:
            break
    return list(results.values())


def _read_curves(
    base: FrozenProject, results: Mapping[int, PointResult], options: SweepOptions
) -> tuple[str | None, Curves]:
    """Return the metric that ranks the points, and its curve of each point; None for one that failed.

    Raises as `collect_points` and `find_metric` do, after the table of *results* is printed.
    """
    trained = [result.name for result in results.values() if not result.error]
    if not trained:
        return options.metric, dict.fromkeys(results)
    compared = collect_points(base, trained)
    try:
        metric = find_metric(compared, options.metric)
    except ParamsError as error:
        _conclude(base, list(results.values()), options, mistake=str(error))
        raise
    curves = {run.name: run.metrics.get(metric) for run in compared.runs}
    return metric, {number: curves.get(result.name) for number, result in results.items()}


def run_without_flow(jobs: Sequence[Job], executor: Executor, report: Report) -> None:
    """Run *jobs* on *executor* without recording them in Prefect."""
    with executor.start() as submit:
        run_jobs(jobs, executor.width, submit, report)


def print_plan(points: Sequence[Point], stop: str | None = None) -> dict[str, str]:
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
        count = f"{len(mistakes)} of {_count(planned, 'point')} cannot run:"
        raise ParamsError("\n".join([count, *mistakes]))
    return states


def _jobs(base: FrozenProject, planned: Sequence[PlannedPoint], lock: Path, *, share_gpus: bool) -> list[Job]:
    return [
        Job(
            base,
            point.name,
            point.point.set_params,
            point.params,
            lock,
            gpus=() if share_gpus else point.gpus,
            run=point.run,
            replaces=point.replaces,
        )
        for point in planned
        if not point.is_done and not point.mistake
    ]


@contextmanager
def _report_interruption(progress: SweepProgress) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not isinstance(error, StageError):  # usually a signal
            print_text(
                f"{len(progress.done)} of {progress.total} points are done. "
                "Run the same command again to resume"
            )
        raise


def _conclude(
    base: FrozenProject, results: Sequence[PointResult], options: SweepOptions, *, mistake: str = ""
) -> None:
    """Print the table of *results*.

    Raises `ParamsError` if the metric is unknown or for another *mistake*, and `StageFailedError` for points
    that failed, with the reason of each.
    """
    if trained := [result.name for result in results if not result.error]:
        compared = collect_points(base, trained)
        shown = default_metric(compared)
        if options.metric and not mistake:
            try:
                shown = find_metric(compared, options.metric)
            except ParamsError as error:
                mistake = str(error)
        table = repeats_table(compared, shown) if options.has_repeats else result_table(compared, shown)
        print_text(f"\n{table}", options.output, end="")
    lines = [mistake] if mistake else []
    if reasons := [f"{result.name}: {result.error}" for result in results if result.error]:
        lines += [f"{len(reasons)} of {_count(results, 'point')} failed", *reasons]
    if mistake:
        raise ParamsError("\n".join(lines))
    if lines:
        raise StageFailedError("\n".join(lines))


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) != 1 else ''}"
