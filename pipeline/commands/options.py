"""Options that several commands have."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.user_errors import TRACEBACK_VARIABLE, VERBOSE_VARIABLE
from stages.contracts.errors import ParamsError

PREFECT_LEVEL = "PREFECT_LOGGING_LEVEL"


def flag(name: str, purpose: str, *short: str) -> Any:
    """Return the option *name*, a switch that is off by default, with *purpose* as its help."""
    no_type = ""  # typer would print <bool>
    return typer.Option(name, *short, help=purpose, show_default="off", metavar=no_type)


AsJson = Annotated[bool, flag("--json", "Print JSON instead of text.")]

Quiet = Annotated[bool, flag("--quiet", "Write nothing to standard output.", "-q")]
Verbose = Annotated[bool, flag("--verbose", "Write debug logs and full tracebacks.", "-v")]

SetParams = Annotated[
    list[str],
    typer.Option(
        "--set-param",
        "-S",
        metavar="KEY=VALUE",
        help="Param to override, in the syntax of `dvc exp run -S`; repeatable.",
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


def _log_debug_records() -> None:
    import dvc.logger  # it sets the level of its loggers, and adds their handlers

    logging.getLogger(dvc.__name__).setLevel(logging.DEBUG)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    for name in ("pipeline", "stages"):
        logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger(name).addHandler(handler)
