"""The error of another process: from the report that it wrote, or from its log."""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stages.contracts.printing import clean

REPORT_VARIABLE = "LEARNER_ERROR_REPORT"
"""Environment variable with the file into which a process writes its error; its parent reads it."""
ERROR_PREFIX = "error: "
_MAX_LOG_BYTES = 1 << 20


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
            more = [each for each in lines[place + 1 : place + 6] if each.startswith("  ")]
            return "\n".join([line.removeprefix(ERROR_PREFIX), *more])
    return ""
