"""Diagnostics, the results of the checks of ``learner doctor``, and the function that runs the checks."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from stages.contracts.errors import StageError

FIX = "`learner doctor --fix` does it"
"""End of the remedy of a diagnostic that has a fix."""


class Level(StrEnum):
    """The severity of a diagnostic."""

    OK = "ok"
    WARNING = "warning"
    """Commands work, but may not do what the user expects."""
    PROBLEM = "problem"
    """A command fails, or a result is lost."""


@dataclass(frozen=True)
class Diagnostic:
    """The state of one subject that a check examined."""

    subject: str
    message: str
    remedy: str = ""
    """What the user can do; empty if nothing is needed."""
    fix: Callable[[], None] | None = None
    """Function that applies the remedy, unless the state has changed; None if only the user can."""
    level: Level = Level.OK


Check = Callable[[], Iterable[Diagnostic]]
ok = Diagnostic
"""The diagnostic of a state that needs no action."""
warning = partial(Diagnostic, level=Level.WARNING)
"""That of a state that commands work with."""
problem = partial(Diagnostic, level=Level.PROBLEM)
"""That of a state in which a command fails or a result is lost."""


def run_checks(checks: Mapping[str, Check], timeout_seconds: float) -> dict[str, list[Diagnostic]]:
    """Run *checks* in parallel and return the diagnostics of each, by its name.

    A check that raises, or that has not returned after *timeout_seconds*, has one diagnostic that reports it.
    The threads are daemons, so a check without a result does not delay the end of the process.
    """
    results: dict[str, list[Diagnostic]] = {}

    def run_check(name: str, check: Check) -> None:
        try:
            results[name] = list(check())
        except StageError as error:
            first, _, rest = str(error).partition("\n")
            results[name] = [problem(name, first, rest.strip())]
        except Exception as error:  # noqa: BLE001  a failed check must not hide the others
            results[name] = [warning(name, f"check failed: {type(error).__name__}: {error}")]

    threads = [
        threading.Thread(target=run_check, args=named_check, daemon=True) for named_check in checks.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    timed_out = f"no answer within {timeout_seconds:g} seconds"
    return {
        name: results.get(
            name, [warning(name, timed_out, "Run `learner doctor` again with a greater --timeout")]
        )
        for name in checks
    }


def drop_duplicates(by_check: Mapping[str, Iterable[Diagnostic]]) -> list[Diagnostic]:
    """Return the diagnostics of all checks in order; several checks that report one cause report it once."""
    unique: dict[tuple[str, str], Diagnostic] = {}
    for diagnostics in by_check.values():
        for diagnostic in diagnostics:
            unique.setdefault((diagnostic.message, diagnostic.remedy), diagnostic)
    return list(unique.values())
