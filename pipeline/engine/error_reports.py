"""Errors of a process: the message for its terminal, or the report for the process that has started it.

The message of an exception of the user's code has the user's file and line.
"""

import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path
from traceback import walk_tb

from stages.contracts.errors import KilledError, RunInterruptedError, StageError, UserCodeError
from stages.contracts.printing import clean, discard_output, print_error
from stages.contracts.user_code import explain, is_user_file, location, user_frames

TRACEBACK_VARIABLE = "LEARNER_TRACEBACK"
"""Environment variable that adds the full traceback to the message, if it is not empty."""
VERBOSE_VARIABLE = "LEARNER_VERBOSE"
"""Environment variable with which all logs of DVC are printed; ``-v`` sets it."""
HINT = f"the full traceback is hidden; set {TRACEBACK_VARIABLE}=1 to print it"
SYSTEM_REMEDY = (
    "The system refused it. Check the path, its permissions and its disk, and the limits of this process "
    "(`ulimit -a`), and run the same command again"
)
INTERRUPTING_PACKAGES = ("pipeline", "prefect")
"""Packages whose signal handlers raise in any frame, including the user's."""
MISTAKES = (
    # a retry would raise them again
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    SystemExit,
    TypeError,
    ValueError,
    Warning,
)
REPORT_VARIABLE = "LEARNER_ERROR_REPORT"
"""Environment variable with the file into which a process writes its error; its parent reads it."""
ERROR_PREFIX = "error: "
_MAX_LOG_BYTES = 1 << 20


@contextmanager
def explain_user_errors(stage: str) -> Iterator[None]:
    """Raise a `UserCodeError` for an exception that the user's code raises in the block, a part of *stage*.

    ``sys.exit()`` counts as an exception: its code may be 0, and the process would end without a result.
    Raises `RunInterruptedError` for a KeyboardInterrupt and for the kill key.
    """
    try:
        yield
    except KilledError as error:
        raise RunInterruptedError(f"{stage}: {error}; run the same command again to resume") from error
    except KeyboardInterrupt as error:
        raise RunInterruptedError(f"{stage}: {explain(error)}") from error
    except StageError:
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) or is_user_error(error):
            is_mistake = isinstance(error, MISTAKES)
            raise UserCodeError(f"{stage}: {describe_user_error(error)}", is_mistake=is_mistake) from error
        raise


def describe_user_error(error: BaseException) -> str:
    """Return the message and the frames of *error*, which the user's code raised."""
    return f"your code raised {explain(error)}\n{HINT}"


def is_user_error(error: BaseException) -> bool:
    """Return whether the user's code, or what it called, raised *error*.

    An exception that a signal handler raised while the user's code was in progress does not count.
    """
    if not user_frames(error):
        return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    user_places = [number for number, frame in enumerate(frames) if is_user_file(frame.f_code.co_filename)]
    deeper = frames[user_places[-1] + 1 :] if user_places else []
    names = {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in deeper}
    return names.isdisjoint(INTERRUPTING_PACKAGES) and (
        isinstance(error, Exception | SystemExit) or not deeper
    )


def report_error(error: BaseException) -> int:
    """Print the message of *error* to standard error, and return the exit code for it.

    Rank 0 of several writes the message into its report instead, and the process that started it prints it.

    A `StageError` prints its message without a traceback and has its own code. A signal has 128 plus its
    number. An exception in the user's code prints its message with the user's frames, one of the operating
    system or of DVC's databases a remedy, and any other one its traceback; all have code 1. A `SystemExit` of
    another package is raised again.
    """
    message, code = explain_error(error)
    if message is None:
        print_traceback(error)
        return code
    if isinstance(error, RunInterruptedError):
        return _report(message, code)
    if os.environ.get(TRACEBACK_VARIABLE):
        error.__suppress_context__ = False  # also the exception that a message has replaced
        print_traceback(error)
    return _report(f"{ERROR_PREFIX}{message}", code)


def explain_error(error: BaseException) -> tuple[str | None, int]:
    """Return the message of *error*, None if it needs its traceback, and its exit code."""
    # of the system, or of the SQLite database of DVC
    is_full = getattr(error, "errno", None) in (ENOSPC, EDQUOT) or "disk is full" in str(error)
    if isinstance(error, StageError):
        is_located = isinstance(error, UserCodeError | RunInterruptedError)
        return str(error) + ("" if is_located else location(error)), error.exit_code
    if isinstance(error, Exception) and is_full:
        return f"{error}. Free disk space and run the same command again to resume", 1
    if is_user_error(error):
        return describe_user_error(error), 1
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, OSError) or type(error).__module__ == "sqlite3":
        return f"{error}. {SYSTEM_REMEDY}\n{HINT}", 1
    return None, 1


def _report(message: str, code: int) -> int:
    """Report *message* to the parent process that reads it, or print it, and return *code*."""
    if not write_report(message, code):
        try:
            print_error(message)
        except BrokenPipeError:
            discard_output()
    return code


def print_traceback(error: BaseException) -> None:
    """Print the traceback of *error* to standard error."""
    print_error("".join(traceback.format_exception(error)).rstrip())


@dataclass(frozen=True)
class ErrorReport:
    """The error with which a process ended."""

    message: str
    seconds: float
    """The time of the error on the system's monotonic clock, which all processes of a host share."""
    code: int
    """The exit code of the process."""


def write_report(message: str, code: int) -> bool:
    """Write *message* and the exit *code* into the report of this process; return whether that is enough.

    It is for rank 0 only: its parent process prints to the same terminal. Without a parent that reads a
    report, nothing is written.
    """
    path = os.environ.get(REPORT_VARIABLE)
    if not path:
        return False
    try:
        report = ErrorReport(clean(message), time.monotonic(), code)
        Path(path).write_text(json.dumps(asdict(report)), encoding="utf-8")
    except OSError:
        return False
    return os.environ.get("RANK") == "0"


def read_report(path: Path) -> ErrorReport | None:
    """Return the report at *path*; None if it is missing, or if its process was killed while it wrote."""
    with suppress(OSError, ValueError, TypeError):
        return ErrorReport(**json.loads(path.read_bytes()))
    return None


def read_lines(log: Path, start: int = 0) -> list[str]:
    """Return the lines of *log* after byte *start* that are not empty; of a large log, the last ones."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _MAX_LOG_BYTES))
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]


def find_error(lines: list[str]) -> str:
    """Return the message that `report_error` printed among *lines*, or an empty string."""
    for place, line in enumerate(lines):
        if line.startswith(ERROR_PREFIX):
            more = [following for following in lines[place + 1 : place + 6] if following.startswith("  ")]
            return "\n".join([line.removeprefix(ERROR_PREFIX), *more])
    return ""
