"""The command ``learner stage``, which dvc.yaml runs."""

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
    from pipeline.engine.rank_process import is_rank

    if is_rank():
        from pipeline.engine.stage_run import run_stage

        run_stage(name)
    else:
        _run_with_lock(name)


def _run_with_lock(name: str) -> None:
    """Run stage *name*, and repair what DVC was writing if the stage fails or DVC is killed."""
    from pipeline.engine.lock import project_lock
    from pipeline.engine.params_journal import restore_params
    from pipeline.engine.process_tree import (
        ancestors_up_to_dvc,
        find_dvc,
        is_dvc_stage,
        terminate_with,
    )
    from pipeline.engine.watchdog import fork_watchdog
    from pipeline.flows.stage_recording import run_stage_of_dvc
    from stages.system.processes import is_alive

    waiting = ancestors_up_to_dvc() if is_dvc_stage(name) else []
    dvc = find_dvc(waiting)
    with ExitStack() as stack:
        try:
            if dvc:
                fork_watchdog(dvc)
            if waiting:
                terminate_with(waiting)
            stack.enter_context(project_lock(waiting, dvc=dvc))
            if restore_params(print_warning):  # DVC chose the stage with the overrides in params.yaml
                raise StageError(f"{name} was not run with them. Run the same command again")
            run_stage_of_dvc(name, dvc, print_warning)
        except BaseException as error:
            if dvc and is_alive(dvc):  # otherwise another DVC process may be writing the outputs
                from pipeline.engine.reproduce import restore_outputs

                restore_outputs(name)
            if isinstance(error, SystemExit):  # with code 0, DVC would record the restored outputs
                from pipeline.user_errors import describe_user_error

                raise UserCodeError(f"{name}: {describe_user_error(error)}") from error
            raise
