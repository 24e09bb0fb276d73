"""An edit of what a stage depends on, while it runs, must not be recorded with the outputs of before.

DVC reads params and dependencies once more when a stage has ended, and records those.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.snapshot import ABSENT, Snapshot, take_snapshot
from stages.contracts.errors import StageError

NAMED = 5
_STARTED = time.time_ns()


def check_unchanged(before: Snapshot) -> None:
    """Raise `StageError` where what *before* was taken of is another now; it says what."""
    changes = list(_changes(before, take_snapshot(before.stage)))
    if changes:
        lines = [
            f"what {before.stage} depends on was changed while it ran, so what it made is not recorded:",
            *changes,
            "the same command runs it with what is there now",
        ]
        raise StageError("\n  ".join(lines))


def check_loaded(before: Snapshot, version: str) -> None:
    """Raise `StageError` where this process has loaded older code than *before* found in the files.

    *version* is that of the stage's module as it was loaded. Only a process that runs several stages can
    be so old.
    """
    key = f"stages/{before.stage.replace('-', '_')}.py: VERSION"
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    stale = [
        *([key] if before.params.get(key, version) != version else []),
        *(
            str(path)
            for path, state in before.files.items()
            if state.modified > _STARTED and str(path.resolve()) in loaded
        ),
    ]
    if stale:
        raise StageError(
            f"{', '.join(stale)} was changed after this process had loaded it, so {before.stage} would run "
            "the code of before: start the command again"
        )


def _changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for key, value in before.params.items():
        yield from _differences(key, value, after.params.get(key, ABSENT))
    changed = [str(path) for path in sorted({*before.files, *after.files}) if _differs(path, before, after)]
    if changed:
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        yield f"{', '.join(changed[:NAMED])}{more}"


def _differs(path: Path, before: Snapshot, after: Snapshot) -> bool:
    old, new = before.files.get(path), after.files.get(path)
    if old is None or new is None:
        return True
    return old != new and (old.digest is None or old.digest != new.digest)


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            joint = " " if name.endswith(":") else "."
            yield from _differences(f"{name}{joint}{key}", old.get(key, ABSENT), new.get(key, ABSENT))
    elif old != new:
        yield f"{name} was {old!r} and is {new!r}"
