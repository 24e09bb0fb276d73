"""The output of a command for programs: an envelope of JSON, or a line for each event of a run."""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import IO, Any

import typer

from pipeline.commands.options import AsJson
from pipeline.commands.results import (
    CheckpointEvent,
    Envelope,
    EpochEvent,
    ErrorInfo,
    MetricEvent,
    StageEvent,
)
from pipeline.engine.error_reports import explain_error, report_error
from pipeline.engine.signals import end_on_signal
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.events import NoRenderer, Progress
from stages.contracts.history import History
from stages.contracts.printing import clean, clean_log_records, print_text
from stages.contracts.text import to_json

JSON, EVENTS = "--json", "--events"
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The class of typer's errors about arguments, which it does not export."""
_SENTENCE = re.compile(r"(?:(?<=\S)\. |\.?\n\s*)(?=[A-Z])")
"""Matches the end of the first sentence of a message; the others state what to do."""


class ProblemsFound(SystemExit):
    """The exit with code 1 of a command whose result, *data*, lists problems."""

    def __init__(self, data: Any) -> None:
        super().__init__(1)
        self.data = data


def add_json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return *command* with the option ``--json``, which `run_for_program` reads, unless it has it."""
    signature = inspect.signature(command)
    if "as_json" in signature.parameters:
        return command

    @wraps(command)
    def call(*, as_json: bool, **arguments: Any) -> Any:  # noqa: ARG001  not for the command
        return command(**arguments)

    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    parameters = [*signature.parameters.values(), option]
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    call.__annotations__ = command.__annotations__ | {"as_json": AsJson}
    return call


def is_for_program(arguments: Sequence[str]) -> bool:
    """Return whether *arguments* ask for JSON, and not for help."""
    options = {*arguments[: arguments.index("--") if "--" in arguments else None]}
    return bool(options & {JSON, EVENTS}) and not options & {"-h", "--help"}


def run_for_program(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run *app* with *arguments*, print an envelope of its result or its error, and return the exit code.

    Other text to standard output is dropped, or with ``--events`` written to standard error, and the envelope
    is the last line.
    """
    output, data, error, code = sys.stdout, None, None, 0
    has_events = EVENTS in arguments
    with ExitStack() as stack:
        nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(sys.stderr if has_events else nowhere))
        try:
            data = _call(app, arguments)
        except ProblemsFound as found:
            data, code = found.data, 1
            error = ErrorInfo(type(found).__name__, "the command has found problems, which data lists", None)
        except BaseException as raised:  # noqa: BLE001  what is not reported is raised again
            code = report_error(raised)
            text = explain_error(raised)[0] or repr(raised)
            message, *hints = _SENTENCE.split(clean(text), maxsplit=1)
            error = ErrorInfo(type(raised).__name__, message, hints[0] if hints else None)
    envelope = Envelope(1, find_command(app, arguments), code == 0, data, error)
    if has_events:
        write_event(output, "end", envelope)
    else:
        print_text(json.dumps(_to_plain(envelope), indent=2), output)
    return code


def _call(app: typer.Typer, arguments: Sequence[str]) -> Any:
    """Return the result of *app*, with its own errors as those of this project."""
    try:
        with clean_log_records(), end_on_signal():
            return app([*arguments], standalone_mode=False)
    except USAGE_ERROR as error:
        raise ParamsError(str(error)) from error
    except typer.Abort as error:
        raise StageError("the question was not answered. Pass --yes") from error


def find_command(app: typer.Typer, arguments: Sequence[str]) -> str:
    """Return the command in *arguments*, such as ``runs list``; empty if they begin with another word."""
    command: Any = typer.main.get_command(app)
    words = []
    for word in arguments:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        words.append(word)
    return " ".join(words)


def _to_plain(value: Any) -> Any:
    """Return the dataclass *value* as what JSON has; numbers that are not finite become text."""
    return json.loads(to_json(asdict(value)))


def write_event(output: IO[str], name: str, fields: Any) -> None:
    """Write a line with the event *name* and its *fields*, a dataclass, to *output*."""
    print_text(json.dumps({"event": name} | _to_plain(fields)), output)


class EventRenderer(NoRenderer):
    """A renderer that writes a line for each event of a run to standard output."""

    def __init__(self) -> None:
        self._output = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  a descriptor: sys.stdout is replaced

    def stage(self, name: str, state: str) -> None:
        """Write that the stage *name* has reached *state*."""
        write_event(self._output, "stage", StageEvent(name, state))

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Write the values of the epoch, and its end."""
        for value in history.at(progress.epoch):
            fields = MetricEvent(value.epoch, value.split, value.metric, value.value)
            write_event(self._output, "metric", fields)
        write_event(self._output, "epoch", EpochEvent(progress.epoch, progress.epochs))

    def checkpoint(self, epoch: int) -> None:
        """Write that the checkpoint of *epoch* is on disk."""
        write_event(self._output, "checkpoint", CheckpointEvent(epoch))
