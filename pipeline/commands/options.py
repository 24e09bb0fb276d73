"""Options that several commands have."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.engine.error_reports import TRACEBACK_VARIABLE, VERBOSE_VARIABLE
from stages.contracts.errors import ParamsError, StageError
from stages.system.files import is_part_of

PREFECT_LEVEL = "PREFECT_LOGGING_LEVEL"


def flag(name: str, purpose: str, *short: str) -> Any:
    """Return the option *name*, a switch that is off by default, with *purpose* as its help."""
    no_type = ""  # typer would print <bool>
    return typer.Option(name, *short, help=purpose, show_default="off", metavar=no_type)


def option(purpose: str, default: str | bool = True, **settings: Any) -> Any:  # noqa: FBT001, FBT002  a text, or the value
    """Return an option with *purpose* as its help, which also shows *default*."""
    return typer.Option(help=purpose, show_default=default, **settings)


def argument(purpose: str, default: str | bool = True, **settings: Any) -> Any:  # noqa: FBT001, FBT002  as above
    """Return an argument with *purpose* as its help, which also shows *default*."""
    return typer.Argument(help=purpose, show_default=default, **settings)


AsJson = Annotated[bool, flag("--json", "Print one envelope of JSON instead of text, also for an error.")]

Quiet = Annotated[bool, flag("--quiet", "Write nothing to standard output.", "-q")]
Verbose = Annotated[bool, flag("--verbose", "Write debug logs and full tracebacks.", "-v")]


def complete_param(incomplete: str) -> list[tuple[str, str]]:
    """Return ``KEY=`` for each param that begins with *incomplete*, with its present value as the help."""
    from pipeline.project.params import list_params

    try:
        return [
            (f"{key}=", f"{json.dumps(value)}{'' if is_set else ', the default'}")
            for key, value, is_set in list_params()
            if key.startswith(incomplete)
        ]
    except StageError:  # no params.yaml, or one with mistakes, of which `learner check` prints a list
        return []


SetParams = Annotated[
    list[str],
    typer.Option(
        "--set-param",
        "-S",
        metavar="KEY=VALUE",
        autocompletion=complete_param,
        help="Param to override, in the syntax of `dvc exp run -S`; a known one needs no plus. Repeatable.",
        show_default="none",
    ),
]


@contextmanager
def set_verbosity(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Write nothing to standard output in the block, or write debug logs of DVC, Prefect and this package.

    Raises `ParamsError` for both at once.
    """
    if quiet and verbose:
        raise ParamsError("-q and -v exclude each other. Pass one of them")
    if verbose:
        os.environ |= {TRACEBACK_VARIABLE: "1", VERBOSE_VARIABLE: "1", PREFECT_LEVEL: "DEBUG"}
        _log_debug_records()
    if not quiet:
        yield
        return
    os.environ[PREFECT_LEVEL] = "WARNING"
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


@contextmanager
def report_unwritable(*paths: Path | None) -> Iterator[None]:
    """Raise `ParamsError` if one of *paths* is a folder, or cannot be written in the block.

    The errors of a full disk pass, since another file would not help.
    """
    targets = [path for path in paths if path is not None]
    for path in targets:
        if path.is_dir():
            raise ParamsError(f"{path} cannot be written: it is a folder. Name another file")
    try:
        yield
    except OSError as error:
        failed = Path(str(error.filename)) if error.filename else None  # None if a file that is open fails
        target = next((path for path in targets if failed and _is_written_for(failed, path)), None)
        if target is None or error.errno in (ENOSPC, EDQUOT):
            raise
        raise ParamsError(f"{target} cannot be written: {error.strerror}. Name another file") from error


def _is_written_for(failed: Path, path: Path) -> bool:
    """Return whether *failed* is *path*, one of its folders, or a file that `open_atomic` renames to it."""
    return failed in (path, *path.parents) or is_part_of(failed, path)


def _log_debug_records() -> None:
    import dvc.logger  # it sets the level of its loggers, and adds their handlers

    logging.getLogger(dvc.__name__).setLevel(logging.DEBUG)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    for name in ("pipeline", "stages"):
        logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger(name).addHandler(handler)
