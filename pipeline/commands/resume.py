"""The command ``learner resume``."""

from typing import Annotated

import typer

from pipeline.commands.options import SetParams
from pipeline.commands.run import print_outcome, run_stages


def resume(
    rev: Annotated[str, typer.Argument(help="Experiment, tag, branch or commit of the run.")],
    *,
    epoch: Annotated[int, typer.Option(min=1, help="Epoch to resume after.")],
    set_param: SetParams = [],  # noqa: B006  never changed
    weights_only: Annotated[
        bool,
        typer.Option(
            "--weights-only",
            help="Load the weights only, and start with a new optimizer and a new schedule.",
            show_default="off",
        ),
    ] = False,
    start: Annotated[
        bool, typer.Option("--run/--no-run", help="Run the stages, or only write params.yaml.")
    ] = True,
) -> None:
    """Resume training from a checkpoint of any run that DVC tracks.

    Write the full SHA of the run and the epoch to build_learner.checkpoint in params.yaml, and run the
    stages.

    Example: learner resume exp-name --epoch 5 -S fit.num_epochs=30
    """
    from pipeline.engine.lock import project_lock
    from pipeline.params_edit import PARAMS
    from pipeline.revisions.resume import restore_params_unless_accepted, set_checkpoint

    with project_lock():
        before = PARAMS.read_bytes() if PARAMS.exists() else b""
        sha = set_checkpoint(rev, epoch, weights_only=weights_only, overrides=set_param)
    typer.echo(f"params.yaml: build_learner.checkpoint is epoch {epoch} of {sha}")
    if not start:
        return
    with restore_params_unless_accepted(before) as attempt:

        def report(name: str, outcome: str) -> None:
            attempt.report(name, outcome)
            print_outcome(name, outcome)

        run_stages(report)
