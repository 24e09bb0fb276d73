"""The command `learner sweep`."""

from functools import partial
from typing import Annotated, Literal

import typer


def sweep(
    *,
    set_param: Annotated[
        list[str],
        typer.Option("--set-param", "-S", metavar="KEY=VALUES", help="As in `dvc exp run --queue -S`."),
    ],
    draw: Annotated[
        int | None, typer.Option("--random", min=1, metavar="N", help="Only N points of the grid.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which ones --random draws.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="So many points at a time.")] = 1,
    engine: Annotated[Literal["threads", "dask", "ray"], typer.Option(help="Who starts them.")] = "threads",
    address: Annotated[
        str | None, typer.Option(help="Of a Dask or Ray cluster that is there; it must see these files.")
    ] = None,
    share_gpus: Annotated[
        bool, typer.Option("--share-gpus", help="All jobs see all GPUs, instead of one each.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the points and run none.")] = False,
) -> None:
    """Run an experiment for each point of a grid; the same command goes on where it was stopped."""
    from pipeline.flows import prefect_api
    from pipeline.sweep.engines import Crew, Engine
    from pipeline.sweep.points import expand
    from pipeline.sweep.sweep import run_alone, show
    from pipeline.sweep.sweep import sweep as run_sweep

    points = expand(set_param, draw=draw, seed=seed)
    if dry_run:
        show(points)
        return
    run = run_alone
    if prefect_api.is_recorded(prefect_api.Recording.REQUIRED, partial(typer.echo, err=True)):
        from pipeline.sweep.recorded import run_recorded as run
    run_sweep(points, Crew(Engine(engine), jobs, address), run, share_gpus=share_gpus)
