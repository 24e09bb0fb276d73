"""The command ``learner sweep``."""

from functools import partial
from typing import Annotated, Literal

import typer

from pipeline.commands.options import flag


def sweep(
    *,
    set_param: Annotated[
        list[str],
        typer.Option(
            "--set-param",
            "-S",
            metavar="KEY=VALUES",
            help="Param and its values, in the syntax of `dvc exp run --queue -S`; repeatable.",
        ),
    ],
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
    seed: Annotated[int, typer.Option(help="Seed of --random.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of points to run at a time.")] = 1,
    engine: Annotated[
        Literal["threads", "dask", "ray"], typer.Option(help="Executor that starts the points.")
    ] = "threads",
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask or Ray cluster whose hosts have these files.",
            show_default="workers on this host",
        ),
    ] = None,
    share_gpus: Annotated[
        bool,
        flag("--share-gpus", "Let every point use all GPUs, instead of one each."),
    ] = False,
    stop: Annotated[
        Literal["median", "asha"] | None,
        typer.Option(
            help="Stop bad points early: after 1/2, 1/4 … of the epochs, the better half continues (median); "
            "after 1/3, 1/9 …, the best third (asha).",
            show_default="no",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Metric to rank the points by, such as valid/Loss.",
            show_default="the first of the valid split",
        ),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print the points without running any.")] = False,
) -> None:
    """Run an experiment for each point of a grid. Run the same command again to resume.

    Example: learner sweep -S fit.batch_size=32,64 -S fit.seed=1,2 -j 2
    """
    from pipeline.flows import prefect_api
    from pipeline.sweep.executors import build_executor
    from pipeline.sweep.plan import expand
    from pipeline.sweep.sweep import SweepOptions, print_plan, run_without_flow
    from pipeline.sweep.sweep import sweep as run_sweep

    points = expand(set_param, draw=draw, seed=seed)
    if dry_run:
        print_plan(points, stop)
        return
    run = run_without_flow
    if prefect_api.is_recorded(prefect_api.Recording.REQUIRED, partial(typer.echo, err=True)):
        from pipeline.sweep.flow_records import run_in_flow as run
    executor = build_executor(engine, jobs, address)
    run_sweep(points, SweepOptions(executor, run, share_gpus=share_gpus, stop=stop, metric=metric))
