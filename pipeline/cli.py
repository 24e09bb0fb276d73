"""The commands of ``learner`` and ``python -m pipeline``: what is typed, to what is called."""

import os
import sys
from contextlib import ExitStack
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.collision import find_collision_in_project
from pipeline.commands.compare import compare, plot
from pipeline.commands.doctor import doctor
from pipeline.commands.init import init, versions
from pipeline.commands.records import app as records_app
from pipeline.commands.runs import app as runs_app
from pipeline.commands.serve import serve
from pipeline.commands.share import pull, push
from pipeline.commands.status import status
from pipeline.commands.sweep import sweep
from pipeline.engine.signals import ending
from pipeline.user_errors import is_of_user_code, message_of, print_full_traceback
from stages.contracts.errors import ParamsError, RunInterruptedError, StageError, UserCodeError
from stages.contracts.user_code import location

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.engine.reproduce import Outcome

CHECKS_NAMES_ITSELF = (None, "init", "doctor")
"""The commands before which `_root` does not look for a collision of package names; None is no command."""

app = typer.Typer(
    name="learner",
    help="Burn's Learner in PyTorch, as five versioned Prefect tasks that are DVC stages too.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(records_app)
app.add_typer(runs_app)


@app.command()
def run() -> None:
    """Bring all five stages up to date in this process, as a Prefect flow if an API is configured."""
    _run_stages(_report)


def _run_stages(report: "Callable[[str, Outcome], None]") -> None:
    from pipeline.check import check_params
    from pipeline.engine.lock import project_lock
    from pipeline.engine.watchdog import take_care
    from pipeline.flows import prefect_api
    from pipeline.params import read_params
    from stages.renderers.choice import renderer_name

    check_params(read_params())  # before anything is started or removed
    renderer_name()
    is_recorded = prefect_api.is_recorded(prefect_api.Recording.REQUIRED, _warn)
    with project_lock():
        take_care(os.getpid())
        if is_recorded:
            from pipeline.flows.recording import run_flow

            run_flow(report)
        else:
            from pipeline.engine.reproduce import reproduce
            from pipeline.stage_registry import VERSIONS

            for name in VERSIONS:
                report(name, reproduce(name))


@app.command()
def resume(
    rev: Annotated[str, typer.Argument(help="An experiment, tag, branch or commit, as git and DVC name it.")],
    *,
    epoch: Annotated[int, typer.Option(min=1, help="The one to go on after.")],
    set_param: Annotated[
        list[str], typer.Option("--set-param", "-S", metavar="KEY=VALUE", help="As in `dvc exp run -S`.")
    ] = [],  # noqa: B006  never changed
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Begin optimizer and schedule anew.")
    ] = False,
    start: Annotated[bool, typer.Option("--run/--no-run", help="Run now, or only write params.yaml.")] = True,
) -> None:
    """Resume from a checkpoint of any run that DVC tracks: write it into params.yaml, and run."""
    from pipeline.engine.lock import project_lock
    from pipeline.params_edit import PARAMS
    from pipeline.revisions.resume import restoring_params, set_checkpoint

    with project_lock():
        before = PARAMS.read_bytes() if PARAMS.exists() else b""
        sha = set_checkpoint(rev, epoch, weights_only=weights_only, overrides=set_param)
    typer.echo(f"params.yaml: build_learner.checkpoint is epoch {epoch} of {sha}")
    if not start:
        return
    with restoring_params(before) as attempt:

        def report(name: str, outcome: str) -> None:
            attempt.report(name, outcome)
            _report(name, outcome)

        _run_stages(report)


@app.command()
def stage(
    name: Annotated[str, typer.Argument(help="As dvc.yaml calls it, for example fit.")],
) -> None:
    """Do what one stage does. This is what dvc.yaml starts; for your own use, `dvc repro NAME`."""
    from pipeline.engine.lock import project_lock
    from pipeline.engine.params_journal import restore_params
    from pipeline.engine.process_tree import dvc_among, is_alive, leave_with, started_by_dvc, starters
    from pipeline.engine.watchdog import take_care

    waiting = starters() if started_by_dvc(name) else []
    dvc = dvc_among(waiting)
    with ExitStack() as stack:
        try:
            if dvc:
                take_care(dvc)
            if waiting:
                leave_with(waiting)
            stack.enter_context(project_lock(waiting))
            if restore_params(_warn):  # DVC has decided with the overrides in it
                raise StageError(f"{name} was not run with them. Run the same command again")
            _run_stage(name, dvc)
        except BaseException as error:
            if dvc and is_alive(dvc):  # else another DVC may be at work on the outputs by now
                from pipeline.engine.reproduce import restore_outputs

                restore_outputs(name)
            if isinstance(error, SystemExit):  # with code 0 DVC would record the restored outputs
                raise UserCodeError(f"{name}: {message_of(error)}") from error
            raise


def _run_stage(name: str, dvc: int | None) -> None:
    from pipeline.engine.stage_run import run_stage
    from pipeline.flows import prefect_api
    from pipeline.stage_registry import VERSIONS

    if name in VERSIONS and prefect_api.is_stage_recorded(dvc, _warn):
        os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
        from pipeline.flows.membership import member_of_flow_run
        from pipeline.flows.server_outage import explain_refusal
        from pipeline.flows.task_run import run_recorded
        from pipeline.flows.tasks import TASKS, hide_expected_tracebacks

        hide_expected_tracebacks()
        with member_of_flow_run() as is_recorded:
            if is_recorded:
                with explain_refusal():
                    TASKS[name](run_recorded)
                return
            typer.echo("warning: the Prefect server has gone, so this stage is not recorded there", err=True)
    run_stage(name)


@app.command()
def check() -> None:
    """Check params.yaml, what it names on this machine, and the dependencies in dvc.yaml."""
    from pipeline.check import PARAMS, late_mistakes, missing_data, missing_deps
    from pipeline.params import not_valid, read_params
    from pipeline.plugin_check import plugin_mistakes
    from pipeline.versions import stale
    from pipeline.yaml_files import read_yaml

    params = read_params()
    mistakes = [
        *late_mistakes(params, read_yaml(PARAMS), read_yaml(Path("dvc.yaml"))),
        *missing_data(params),
        *plugin_mistakes(params),
    ]
    missing = [*missing_deps(params), *stale()]
    for line in missing:
        typer.echo(line)
    if mistakes:
        raise not_valid(PARAMS, mistakes)
    if missing:
        raise typer.Exit(1)
    typer.echo("params.yaml is valid")


@app.command()
def summary(
    directory: Annotated[
        Path, typer.Argument(help="An artifact directory, ours or Burn's: it has train/ and valid/.")
    ] = Path("artifacts"),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Print the table of a finished run from its logs alone."""
    from stages.learner.summary import summary_json, summary_text
    from stages.loggers.reading import count_epochs, read_history, read_tests

    history, tests, epochs = read_history(directory), read_tests(directory), count_epochs(directory)
    if not len(history) and not tests:
        raise StageError(f"{directory} has no logs: there is no train/epoch-1/*.log in it")
    if as_json:
        text = summary_json(history, tests, epochs=epochs) + "\n"
    else:
        text = summary_text(history, tests=tests, epochs=epochs)
    typer.echo(text, nl=False)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Option(help="A record that save-model wrote.")] = Path(
        "artifacts/model.mpk.gz"
    ),
    source: Annotated[
        str, typer.Option(help="train, valid, digits, idx:FOLDER, npz:FILE, or an import path.")
    ] = "valid",
) -> None:
    """Measure a saved model; its logs go to artifacts/test/."""
    from pipeline.evaluate import evaluate as evaluate_model
    from pipeline.params import read_params
    from pipeline.project import read_paths

    evaluate_model(read_params(), read_paths(), model, source)


for each in (status, compare, plot, sweep, serve, push, pull, doctor, init, versions):
    app.command()(each)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if context.invoked_subcommand not in CHECKS_NAMES_ITSELF and "--help" not in sys.argv:
        _check_names()
    if context.invoked_subcommand != "stage":
        _restore_params()
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("learner-pipeline"))
        raise typer.Exit


def _check_names() -> None:
    collision = find_collision_in_project(Path())
    if collision:
        raise ParamsError(str(collision))


def _restore_params() -> None:
    from pipeline.engine.params_journal import restore_idle_params

    restore_idle_params(_warn)


def _warn(message: str) -> None:
    typer.echo(message, err=True)


def main() -> None:
    """Run the command line; a `StageError` is its message and its exit code, with no traceback.

    So is a signal: 128 and its number, whatever was going on. An exception in the user's code is its message
    and the user's frames.
    """
    sys.path.insert(0, str(Path.cwd()))  # a user's own modules lie beside params.yaml
    try:
        with ending():
            app()
    except RunInterruptedError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except StageError as error:
        print_full_traceback(error)
        where = "" if isinstance(error, UserCodeError) else location(error)
        typer.echo(f"error: {error}{where}", err=True)
        sys.exit(error.exit_code)
    except BaseException as error:
        if isinstance(error, Exception) and _is_of_a_full_disk(error):
            typer.echo(f"error: {error}: make space, and the same command goes on", err=True)
            sys.exit(1)
        if not is_of_user_code(error):
            raise
        print_full_traceback(error)
        typer.echo(f"error: {message_of(error)}", err=True)
        sys.exit(1)


def _is_of_a_full_disk(error: Exception) -> bool:
    """Whether it says so in the system's words, or in SQLite's, in which DVC notes files."""
    return getattr(error, "errno", None) in (ENOSPC, EDQUOT) or "disk is full" in str(error)


def _report(name: str, outcome: str) -> None:
    typer.echo(f"{name}: {outcome}")
