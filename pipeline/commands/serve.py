"""The command `learner serve`."""

from enum import StrEnum
from math import isfinite
from typing import Annotated

import typer

from stages.contracts.errors import ParamsError


class OnCollision(StrEnum):
    """What the second of two runs of a deployment does."""

    wait = "wait"
    cancel = "cancel"


def serve(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[STAGE]...", help="With what they need; none means all.")
    ] = None,
    *,
    cron: Annotated[str | None, typer.Option(help='When to run, for example "0 3 * * *".')] = None,
    interval: Annotated[float | None, typer.Option(min=1, help="Or the seconds from run to run.")] = None,
    timezone: Annotated[str, typer.Option(help="In which --cron is meant.")] = "UTC",
    name: Annotated[str, typer.Option(help="Of the deployment.")] = "nightly",
    set_param: Annotated[
        list[str], typer.Option("--set-param", "-S", metavar="KEY=VALUE", help="As in `dvc exp run -S`.")
    ] = [],  # noqa: B006  never changed
    experiment: Annotated[
        bool, typer.Option("--experiment/--workspace", help="Each run apart, as an experiment; or in here.")
    ] = True,
    push: Annotated[bool, typer.Option("--push", help="To the remotes, after each run.")] = False,
    timeout: Annotated[float | None, typer.Option(min=1, help="Seconds after which a run saves.")] = None,
    on_collision: Annotated[
        OnCollision, typer.Option(help="What a run does while one of this deployment is at work.")
    ] = OnCollision.wait,
) -> None:
    """Run on a schedule, as a deployment of the Prefect server that is configured, until this is ended."""
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
    serve_deployment(
        Plan(name, cron, interval, timezone, cancels=on_collision is OnCollision.cancel), parameters
    )
