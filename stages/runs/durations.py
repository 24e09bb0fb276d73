"""Durations of finished runs, in ``durations/<md5 of metrics.json>-<key>.json`` next to the run stores.

The records are a few bytes for each run. They stay when a store is pruned, restarted or trained further.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from stages.contracts.text import to_json
from stages.runs.key import KEY_LENGTH
from stages.runs.layout import DURATIONS_FOLDER
from stages.runs.store import read_json
from stages.system.files import md5, write_text

_RECORD = re.compile(rf"([0-9a-f]{{32}})-([0-9a-f]{{{KEY_LENGTH}}})\.json")
_STARTED = ("Starting training", "Resuming ")
"""Beginnings of the first log line of a process: the time before it is a pause."""


def read_durations(root: Path) -> dict[str, dict[str, float]]:
    """Return md5 of ``metrics.json`` to run key to seconds, from the records below *root*."""
    found: dict[str, dict[str, float]] = {}
    for path in (root / DURATIONS_FOLDER).glob("*.json"):
        name, content = _RECORD.fullmatch(path.name), read_json(path)
        if name and content and isinstance(content.get("seconds"), float):
            found.setdefault(name[1], {})[name[2]] = content["seconds"]
    return found


def record_duration(store_path: Path) -> None:
    """Write the record of the finished run in *store_path*, unless its log has no times.

    No error is raised if it cannot be written, for example on a full disk: only `learner compare` reads it.
    """
    with suppress(OSError):
        metrics, seconds = md5(store_path / "metrics.json"), working_seconds_of(store_path)
        if metrics and seconds is not None:
            path = store_path.parent / DURATIONS_FOLDER / f"{metrics}-{store_path.name}.json"
            write_text(path, to_json({"seconds": seconds}) + "\n")


def working_seconds_of(store_path: Path) -> float | None:
    """Return the duration of the run in *store_path* in seconds; None if its log has no times."""
    path = store_path / "experiment.log"
    if not path.exists():
        return None
    return working_seconds(path.read_text(encoding="utf-8", errors="replace").splitlines())


def working_seconds(lines: Iterable[str]) -> float | None:
    """Return the time from the first of the *lines* of an experiment.log to the last, without pauses."""
    total, before = 0.0, None
    for line in lines:
        stamp, _, rest = line.partition(" ")
        try:
            now = datetime.fromisoformat(stamp)
        except ValueError:
            continue  # a line of a traceback
        message = rest.partition(": ")[2]
        if before is not None and not message.startswith(_STARTED):
            total += max(0.0, (now - before).total_seconds())
        before = now
    return total if before is not None and total > 0 else None
