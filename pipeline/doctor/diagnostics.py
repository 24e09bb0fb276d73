"""What ``learner doctor`` finds: what it looked at, how that is, and what to do about it."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stages.contracts.errors import StageError


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as may be expected."""
    PROBLEM = "problem"
    """A command fails, or a result is lost."""


@dataclass(frozen=True)
class Diagnostic:
    """One thing that was looked at."""

    subject: str
    level: Level
    message: str
    remedy: str = ""
    """What to do; empty where nothing is needed."""
    fix: Callable[[], None] | None = None
    """Does it, for what is of no use to anybody; raises nothing where that has changed meanwhile."""


Check = Callable[[], Iterable[Diagnostic]]


def ok(about: str, what: str) -> Diagnostic:
    """All is well."""
    return Diagnostic(about, Level.OK, what)


def warning(about: str, what: str, cure: str, mend: Callable[[], None] | None = None) -> Diagnostic:
    """Something to know."""
    return Diagnostic(about, Level.WARNING, what, cure, mend)


def problem(about: str, what: str, cure: str, mend: Callable[[], None] | None = None) -> Diagnostic:
    """Something to mend."""
    return Diagnostic(about, Level.PROBLEM, what, cure, mend)


def run_checks(checks: Mapping[str, Check], seconds: float) -> dict[str, list[Diagnostic]]:
    """What each of *checks* finds, by its name.

    They run beside each other, for *seconds* at most, in threads that end with the process.
    """
    found: dict[str, list[Diagnostic]] = {}

    def look(about: str, check: Check) -> None:
        try:
            found[about] = list(check())
        except StageError as error:
            first, _, rest = str(error).partition("\n")
            found[about] = [problem(about, first, rest.strip())]
        except Exception as error:  # noqa: BLE001  one check that cannot be made must not hide the others
            found[about] = [warning(about, f"not looked at: {type(error).__name__}: {error}", "")]

    threads = [threading.Thread(target=look, args=each, daemon=True) for each in checks.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {seconds:g} seconds"
    return {about: found.get(about, [warning(about, late, "try again")]) for about in checks}


def drop_duplicates(found: Mapping[str, Iterable[Diagnostic]]) -> list[Diagnostic]:
    """All that was *found*, in order; what several checks stumbled over is there once."""
    every: dict[tuple[str, str], Diagnostic] = {}
    for findings in found.values():
        for each in findings:
            every.setdefault((each.message, each.remedy), each)
    return list(every.values())
