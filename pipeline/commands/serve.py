"""The command ``learner serve``."""

from enum import StrEnum
from math import isfinite
from typing import Annotated

import typer

from pipeline.commands.options import SetParams, flag
from stages.contracts.errors import ParamsError


class OnCollision(StrEnum):
    """What a run of a deployment does while another run of it is in progress."""

    wait = "wait"
    cancel = "cancel"


def serve(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STAGE", help="Stages to run, with what they depend on.", show_default="all stages"
        ),
    ] = None,
    *,
    cron: Annotated[
        str | None,
        typer.Option(help='Schedule in cron syntax, for example "0 3 * * *".', show_default="no schedule"),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds between runs, instead of --cron.", show_default="no schedule"),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of --cron.")] = "UTC",
    name: Annotated[str, typer.Option(help="Name of the deployment.")] = "nightly",
    set_param: SetParams = [],  # noqa: B006  never changed
    experiment: Annotated[
        bool,
        typer.Option(
            "--experiment/--workspace", help="Run as an isolated experiment, or in the workspace.", metavar=""
        ),
    ] = True,
    push: Annotated[
        bool,
        flag("--push", "Push the cache and experiments after each run."),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds after which a run saves and stops.", show_default="no limit"),
    ] = None,
    on_collision: Annotated[
        OnCollision, typer.Option(help="What a run does while another run of this deployment is in progress.")
    ] = OnCollision.wait,
    allow_code: Annotated[
        bool,
        flag("--allow-code", "Let overrides of runs set import paths and files that are not committed."),
    ] = False,
) -> None:
    """Run the pipeline on a schedule, as a Prefect deployment that this process serves.

    It needs a Prefect server, whose address is PREFECT_API_URL, and serves until it is interrupted. Without a
    schedule, it waits for runs that `prefect deployment run` starts.

    Example: learner serve --cron "0 3 * * *" -S fit.num_epochs=30 --push
    """
    from pipeline.flows import prefect_api

    for option, seconds in (("--interval", interval), ("--timeout", timeout)):
        if seconds is not None and not isfinite(seconds):
            raise ParamsError(f"{option} is {seconds}. Set it to a finite number of seconds")
    prefect_api.read_recording(prefect_api.Recording.REQUIRED)
    if prefect_api.is_configured():
        prefect_api.require_api()
    from pipeline.flows.serving import Plan, serve_deployment

    parameters = {
        "overrides": set_param,
        "experiment": experiment,
        "push": push,
        "targets": targets or [],
        "timeout_seconds": timeout,
    }
    plan = Plan(name, cron, interval, timezone, cancels=on_collision is OnCollision.cancel)
    serve_deployment(plan, parameters, allow_code=allow_code)
