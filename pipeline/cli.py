"""The application ``learner``: its commands, and the exit code of each error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipeline.commands.compare import compare, plot
from pipeline.commands.doctor import doctor
from pipeline.commands.envelope import USAGE_ERROR, add_json_option, is_for_program, run_for_program
from pipeline.commands.options import flag
from pipeline.commands.project import check, init, params, status, versions
from pipeline.commands.records import app as records_app
from pipeline.commands.run import resume, run, serve, stage
from pipeline.commands.runs import app as runs_app
from pipeline.commands.sweep import sweep
from pipeline.commands.training import data, evaluate, lr_find, predict, publish, summary
from pipeline.engine.error_reports import report_error
from pipeline.engine.signals import end_on_signal
from pipeline.project.collision import find_collision_in_project
from stages.contracts.errors import ParamsError
from stages.contracts.printing import clean, clean_log_records, print_error, print_line

COMMANDS_WITHOUT_CHECKS = (None, "init")
"""Commands before which `_root` checks nothing in the current folder; None is a call without one."""
COMMANDS_WITHOUT_PROJECT = ("records", "summary")
"""Commands that use only the files in their arguments."""
READING_COMMANDS = ("check", "params", "status", "compare", "plot", "publish", "doctor", "runs", "versions")
"""Commands that neither run a project's code nor depend on its params.yaml."""


class _Group(TyperGroup):
    """A group of commands whose usage errors repeat arguments without what controls a terminal."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the options of ``learner`` itself."""
        with _clean_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run it."""
        with _clean_usage_errors():
            return super().invoke(ctx)


@contextmanager
def _clean_usage_errors() -> Iterator[None]:
    try:
        yield
    except USAGE_ERROR as error:
        vars(error)["message"] = clean(vars(error)["message"])
        raise


app = typer.Typer(
    name="learner",
    cls=_Group,
    help="Train PyTorch models in five versioned stages that DVC tracks and Prefect runs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
COMMANDS: tuple[Callable[..., Any], ...] = (
    *(run, resume, stage, check, params, status, data, summary, evaluate, predict, publish, lr_find, compare),
    *(plot, sweep, serve, doctor, init, versions),
)
for command in COMMANDS:
    app.command()(command)
for group in (app, records_app, runs_app):
    for registered in group.registered_commands:
        if registered.callback:
            registered.callback = add_json_option(registered.callback)
app.add_typer(records_app)
app.add_typer(runs_app)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, flag("--version", "Print the version and exit.")] = False,
) -> None:
    if context.invoked_subcommand not in COMMANDS_WITHOUT_CHECKS and not {"-h", "--help"} & {*sys.argv}:
        _check_project(context.invoked_subcommand)
    if version:
        from importlib.metadata import version as installed

        print_line(installed("learner-pipeline"))
        raise typer.Exit


def _check_project(command: str | None) -> None:
    """Check the names and files of the project in the current folder before *command* uses it.

    A command that only reads reports the overrides of a killed run in params.yaml, and others restore it.
    """
    if collision := find_collision_in_project(Path()):
        raise ParamsError(collision)
    if command in COMMANDS_WITHOUT_PROJECT:
        return
    from pipeline.project.git import check_delivered_files
    from stages.runs.layout import PARAMS_JOURNAL

    check_delivered_files(is_repair=command == "doctor")
    if not PARAMS_JOURNAL.exists():
        return
    from pipeline.engine.params_journal import describe_open_journal, restore_idle_params

    if command in READING_COMMANDS:
        if warning := describe_open_journal():
            print_error(f"warning: {warning}")
    elif command != "stage":
        restore_idle_params(print_error)


def main() -> None:
    """Run the command line, and exit with the code of its error (see `report_error`)."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a chart or the text of a model must not end a command
    try:
        arguments = sys.argv[1:]
        if is_for_program(arguments):
            sys.exit(run_for_program(app, arguments))
        with clean_log_records(), end_on_signal():
            app()
    except BaseException as error:  # noqa: BLE001  what is not reported is raised again
        sys.exit(report_error(error))
