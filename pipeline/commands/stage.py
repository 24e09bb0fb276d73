"""The command ``learner stage``, which dvc.yaml runs."""

import os
from contextlib import ExitStack
from typing import Annotated

import typer

from pipeline.commands.run import print_warning
from stages.contracts.errors import StageError, UserCodeError


def stage(
    name: Annotated[str, typer.Argument(help="Name of the stage in dvc.yaml.")],
) -> None:
    """Run one stage, as the commands in dvc.yaml do.

    To bring a stage up to date, use `dvc repro NAME`: this command does not check whether the stage must run,
    and does not update dvc.lock.

    Example: learner stage fit
    """
    from pipeline.engine.edit_guard import record_loaded_sources

    record_loaded_sources()
    from pipeline.engine.lock import project_lock
    from pipeline.engine.params_journal import restore_params
    from pipeline.engine.process_tree import (
        ancestors_up_to_dvc,
        find_dvc,
        is_dvc_stage,
        terminate_with,
    )
    from pipeline.engine.watchdog import fork_watchdog
    from stages.contracts.processes import is_alive

    waiting = ancestors_up_to_dvc() if is_dvc_stage(name) else []
    dvc = find_dvc(waiting)
    with ExitStack() as stack:
        try:
            if dvc:
                fork_watchdog(dvc)
            if waiting:
                terminate_with(waiting)
            stack.enter_context(project_lock(waiting))
            if restore_params(print_warning):  # DVC chose the stage with the overrides in params.yaml
                raise StageError(f"{name} was not run with them. Run the same command again")
            _run_stage(name, dvc)
        except BaseException as error:
            if dvc and is_alive(dvc):  # otherwise another DVC process may be writing the outputs
                from pipeline.engine.reproduce import restore_outputs

                restore_outputs(name)
            if isinstance(error, SystemExit):  # with code 0, DVC would record the restored outputs
                from pipeline.user_errors import describe_user_error

                raise UserCodeError(f"{name}: {describe_user_error(error)}") from error
            raise


def _run_stage(name: str, dvc: int | None) -> None:
    """Run stage *name* as a Prefect task run if an API is configured, otherwise as a plain function."""
    from pipeline.engine.stage_run import run_stage
    from pipeline.flows import prefect_api
    from pipeline.versions import VERSIONS

    if name in VERSIONS and prefect_api.is_stage_recorded(dvc, print_warning):
        os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
        from pipeline.flows.server_outage import explain_api_errors
        from pipeline.flows.task_run import join_flow_run, run_recorded
        from pipeline.flows.tasks import TASKS, hide_expected_tracebacks

        hide_expected_tracebacks()
        with join_flow_run() as is_recorded:
            if is_recorded:
                with explain_api_errors():
                    TASKS[name](run_recorded)
                return
            print_warning(
                "warning: the Prefect server stopped responding, so this stage is not recorded there"
            )
    run_stage(name)
