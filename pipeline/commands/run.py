"""The command ``learner run``."""

import os
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.engine.reproduce import Outcome


def run() -> None:
    """Bring all five stages up to date in one process.

    Record them as a Prefect flow run if a Prefect API is configured, and print the outcome of each stage.
    Stages whose dependencies are unchanged do not run.

    Example: learner run
    """
    run_stages(print_outcome)


def run_stages(report: "Callable[[str, Outcome], None]") -> None:
    """Run the stages that are out of date in the workspace, and pass the outcome of each to *report*."""
    from pipeline.engine.edit_guard import record_loaded_sources

    record_loaded_sources()
    from pipeline.check import check_params
    from pipeline.engine.lock import project_lock
    from pipeline.engine.watchdog import fork_watchdog
    from pipeline.flows import prefect_api
    from pipeline.params import read_params
    from stages.renderers.choice import read_renderer_name

    check_params(read_params())  # before a process is started or an output is removed
    read_renderer_name()
    is_recorded = prefect_api.is_recorded(prefect_api.Recording.REQUIRED, print_warning)
    with project_lock():
        fork_watchdog(os.getpid())
        if is_recorded:
            from pipeline.flows.flow import learner, run_from_command_line

            with run_from_command_line(report):
                learner(experiment=False)
        else:
            from pipeline.engine.reproduce import reproduce
            from pipeline.stage_registry import VERSIONS

            for name in VERSIONS:
                report(name, reproduce(name))


def print_outcome(name: str, outcome: str) -> None:
    """Print the *outcome* of stage *name*."""
    typer.echo(f"{name}: {outcome}")


def print_warning(message: str) -> None:
    """Print *message* to standard error."""
    typer.echo(message, err=True)
