"""The commands ``learner run`` and ``learner resume``, which run the stages that are out of date."""

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import Quiet, SetParams, Verbose, flag, set_verbosity
from stages.contracts.printing import print_error, print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pipeline.engine.reproduce import Outcome


def run(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="STAGE",
            help="Stages to bring up to date, with the stages that they depend on.",
            show_default="all",
        ),
    ] = [],  # noqa: B006  never changed
    *,
    set_param: SetParams = [],  # noqa: B006  never changed
    force: Annotated[
        bool, flag("--force", "Run the stages although their dependencies are unchanged.", "-f")
    ] = False,
    downstream: Annotated[
        bool, flag("--downstream", "Bring the named stages and those that depend on them up to date.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Bring the five stages up to date in one process.

    Record them as a Prefect flow run if a Prefect API is configured, and print the outcome of each stage.
    Stages whose dependencies are unchanged do not run. Params that -S sets stay in params.yaml after a run
    that has completed; after any other run, params.yaml is restored. The options are those of `dvc repro`.

    Example: learner run -S fit.num_epochs=30
    """
    with set_verbosity(quiet=quiet, verbose=verbose):
        run_stages(print_outcome, set_param, Selection(targets, downstream=downstream, force=force))


def resume(
    rev: Annotated[str, typer.Argument(help="Experiment, tag, branch or commit of the run.")],
    *,
    epoch: Annotated[int, typer.Option(min=1, help="Epoch to resume after.")],
    set_param: SetParams = [],  # noqa: B006  never changed
    weights_only: Annotated[
        bool,
        flag("--weights-only", "Load the weights only, and start with a new optimizer and a new schedule."),
    ] = False,
    start: Annotated[
        bool, typer.Option("--run/--no-run", help="Run the stages, or only write params.yaml.", metavar="")
    ] = True,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Resume training from a checkpoint of any run that DVC tracks.

    Write the full SHA of the run and the epoch to build_learner.checkpoint in params.yaml, and run the
    stages.

    Example: learner resume exp-name --epoch 5 -S fit.num_epochs=30
    """
    from pipeline.engine.lock import project_lock
    from pipeline.project.params_edit import PARAMS
    from pipeline.project.revisions.resume import restore_params_unless_accepted, set_checkpoint

    with project_lock():
        before = PARAMS.read_bytes() if PARAMS.exists() else b""
        sha = set_checkpoint(rev, epoch, weights_only=weights_only, overrides=set_param)
    print_line(f"params.yaml: build_learner.checkpoint is epoch {epoch} of {sha}")
    if not start:
        return
    with set_verbosity(quiet=quiet, verbose=verbose), restore_params_unless_accepted(before) as attempt:

        def report(name: str, outcome: str) -> None:
            attempt.report(name, outcome)
            print_outcome(name, outcome)

        run_stages(report)


@dataclass(frozen=True)
class Selection:
    """The stages of a run: *targets* with the stages before or, *downstream*, after them; none means all."""

    targets: "Sequence[str]" = ()
    downstream: bool = False
    force: bool = False
    """Run the stages although their dependencies are unchanged."""


def run_stages(
    report: "Callable[[str, Outcome], None]",
    overrides: "Sequence[str]" = (),
    selection: Selection = Selection(),
) -> None:
    """Run the stages of *selection* that are out of date, and pass the outcome of each to *report*.

    *overrides* are params in the syntax of DVC's ``-S``, which are set in params.yaml.
    """
    from pipeline.engine.edit_guard import record_loaded_sources

    record_loaded_sources()
    from pipeline.engine.lock import project_lock
    from pipeline.engine.reproduce import reproduce, select_stages
    from pipeline.engine.watchdog import fork_watchdog
    from pipeline.flows import prefect_api
    from pipeline.project.check import check_stages
    from pipeline.project.yaml_files import read_definition
    from stages.renderers.plain import read_renderer_name

    check_stages(read_definition())
    _check_params(overrides)  # before a process is started or an output is removed
    stages = select_stages(selection.targets, downstream=selection.downstream)
    read_renderer_name()
    is_recorded = prefect_api.is_recorded(prefect_api.Recording.REQUIRED, print_warning)
    with project_lock():
        fork_watchdog(os.getpid())
        with _set_params(overrides):
            if is_recorded:
                from pipeline.flows.flow import learner, run_from_command_line

                with run_from_command_line(report):
                    learner(list(overrides), experiment=False, **vars(selection))
            else:
                for name in stages:
                    report(name, reproduce(name, force=selection.force))


def _check_params(overrides: "Sequence[str]") -> None:
    """Raise `ParamsError` if params.yaml with *overrides* is not valid."""
    if overrides:
        from pipeline.project.params_edit import override_params

        override_params(overrides)
    else:
        from pipeline.project.check import check_params
        from pipeline.project.params import read_params

        check_params(read_params())


@contextmanager
def _set_params(overrides: "Sequence[str]") -> "Iterator[None]":
    """Set *overrides* in params.yaml, and restore its previous content if the block raises."""
    if not overrides:
        yield
        return
    from pipeline.engine.params_journal import edit_params
    from pipeline.project.params_edit import override_params

    with edit_params(override_params(overrides)):
        yield


def print_outcome(name: str, outcome: str) -> None:
    """Print the *outcome* of stage *name*."""
    print_line(f"{name}: {outcome}")


def print_warning(message: str) -> None:
    """Print *message* to standard error."""
    print_error(message)
