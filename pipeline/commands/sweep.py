"""The command ``learner sweep``."""

import sys
from typing import Annotated, Literal

import typer

from pipeline.commands.options import flag, option, set_verbosity
from pipeline.commands.results import SweepPoint
from stages.contracts.errors import ParamsError


def sweep(
    *,
    set_param: Annotated[
        list[str] | None,
        typer.Option(
            "--set-param",
            "-S",
            metavar="KEY=VALUES",
            help="Param and its values, in the syntax of `dvc exp run --queue -S`, or its interval with "
            "--search; repeatable.",
            show_default="none, with --repeat or --folds",
        ),
    ] = None,
    draw: Annotated[
        int | None,
        typer.Option(
            "--random",
            min=1,
            metavar="N",
            help="Run only N points, drawn at random from the grid.",
            show_default="all points",
        ),
    ] = None,
    search: Annotated[
        Literal["tpe", "gp", "cmaes", "qmc", "random"] | None,
        option("Sampler of Optuna that chooses the points from the results so far, instead of a grid.", "no"),
    ] = None,
    trials: Annotated[int | None, option("Number of points of --search.", "none", min=1, metavar="N")] = None,
    batch: Annotated[
        int | None,
        option(
            "Number of points that --search chooses at a time, before it has their results.",
            "5",
            min=1,
            metavar="N",
        ),
    ] = None,
    seed: Annotated[int, option("Seed of --random and --search.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of points to run at a time.")] = 1,
    engine: Annotated[
        Literal["threads", "dask", "ray"], option("Executor that starts the points.")
    ] = "threads",
    address: Annotated[
        str | None,
        option("Address of a Dask or Ray cluster whose hosts have these files.", "workers on this host"),
    ] = None,
    share_gpus: Annotated[
        bool, flag("--share-gpus", "Let every point use all GPUs, instead of its own.")
    ] = False,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeat",
            min=1,
            metavar="N",
            help="Run each point with the seeds 1 to N; the table has mean and standard deviation.",
        ),
    ] = 1,
    folds: Annotated[
        int | None,
        option(
            "Run each point with each of K folds of the train data as the valid split; the table has "
            "mean and standard deviation.",
            "no",
            min=2,
            metavar="K",
        ),
    ] = None,
    stop: Annotated[
        Literal["median", "asha", "hyperband", "percentile"] | None,
        option(
            "Stop bad points early: after 1/2, 1/4 … of the epochs, the better half continues (median); "
            "after 1/3, 1/9 …, the best third (asha). With --search also by Optuna's pruners hyperband "
            "and percentile.",
            "no",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        option(
            "Metric to rank the points by, such as valid/Loss.",
            "the first of the valid split",
            metavar="METRIC",
        ),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print the points without running any.")] = False,
    quiet: Annotated[
        bool, flag("--quiet", "Write only the table of results to standard output.", "-q")
    ] = False,
) -> list[SweepPoint]:
    """Run an experiment for each point of a grid or a search. Run the same command again to resume.

    On a terminal, a live table has the epoch, the metric and the time left of each point in progress.

    Example: learner sweep -S fit.batch_size=32,64 -S fit.seed=1,2 -j 2
    """
    from pipeline.flows import prefect_api
    from pipeline.sweep.executors import build_executor
    from pipeline.sweep.plan import Point, expand, fold, repeat
    from pipeline.sweep.progress import hide_prefect_logs
    from pipeline.sweep.search import DEFAULT_BATCH, Search, SearchOptions
    from pipeline.sweep.sweep import SweepOptions, print_plan, run_without_flow
    from pipeline.sweep.sweep import sweep as run_sweep

    _check_combination(search, trials, batch, draw, stop)
    has_repeats = repeats > 1 or folds is not None
    if has_repeats and (search or stop):
        option = "--repeat" if repeats > 1 else "--folds"
        raise ParamsError(f"{option} is for the points of a grid. Remove it, or --search and --stop")
    set_param = set_param or []
    if search and trials:
        source: Search | list[Point] = Search(
            set_param, SearchOptions(search, trials, batch or DEFAULT_BATCH, seed)
        )
    else:
        is_plain = has_repeats and not set_param
        points = [Point((), ())] if is_plain else expand(set_param, draw=draw, seed=seed)
        source = repeat(fold(points, folds or 1), repeats)
    if dry_run:
        planned = print_plan(source.ask() if isinstance(source, Search) else source, stop)
        return [SweepPoint(name, state) for name, state in planned.items()]
    output = sys.stdout
    with set_verbosity(quiet=quiet, verbose=False):
        hide_prefect_logs()
        run = run_without_flow
        if prefect_api.is_recorded(prefect_api.Recording.REQUIRED):
            from pipeline.sweep.flow_records import run_in_flow as run
        executor = build_executor(engine, jobs, address)
        options = SweepOptions(
            executor,
            run,
            share_gpus=share_gpus,
            stop=stop,
            metric=metric,
            has_repeats=has_repeats,
            output=output,
        )
        results = run_sweep(source, options)
    return [SweepPoint(one.name, "stopped early" if one.stopped else "done") for one in results]


def _check_combination(
    search: str | None, trials: int | None, batch: int | None, draw: int | None, stop: str | None
) -> None:
    """Raise `ParamsError` for options that exclude each other, or of which one needs another."""
    from pipeline.sweep.stopping import RULES

    add = "Add for example --search tpe --trials 30"
    if search and draw is not None:
        raise ParamsError(
            f"--random {draw} draws from a grid, but --search {search} has none. Remove one of them"
        )
    if search and trials is None:
        raise ParamsError(f"--search {search} needs the number of points. Add for example --trials 30")
    for name, value in (("--trials", trials), ("--batch", batch)):
        if value is not None and not search:
            raise ParamsError(f"{name} {value} needs a sampler. {add}, or use --random N for a grid")
    if stop and RULES[stop].pruner and not search:
        raise ParamsError(
            f"--stop {stop} compares a point with earlier trials of a search. {add}, or use --stop asha"
        )
