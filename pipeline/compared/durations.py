"""How long a run trained, from its run store; no output that is tracked has a clock in it."""

from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path

from stages.contracts.files import md5
from stages.runs.store import stores

_TAKEN_UP = ("Restoring checkpoint ", "Passing over ")
"""How a line begins that a process writes first where it takes up a run: nobody worked just before it."""


class Durations:
    """The run stores below *root*, by the metrics that they ended in."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def seconds(self, metrics_md5: str | None) -> float | None:
        """What the run took whose metrics.json has that md5; None where not exactly one has it."""
        found = self._stores.get(metrics_md5 or "", [])
        return worked_seconds(_lines(found[0] / "experiment.log")) if len(found) == 1 else None

    @cached_property
    def _stores(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for store in stores(self._root):
            metrics = store / "metrics.json"
            if metrics.exists():
                found.setdefault(md5(metrics) or "", []).append(store)
        return found


def worked_seconds(lines: Iterable[str]) -> float | None:
    """From the first line of an experiment.log to the last, without the time in which nobody worked."""
    total, before = 0.0, None
    for line in lines:
        stamp, _, rest = line.partition(" ")
        try:
            now = datetime.fromisoformat(stamp)
        except ValueError:
            continue  # a line of a traceback
        message = rest.partition(": ")[2]
        if before is not None and not message.startswith(_TAKEN_UP):
            total += max(0.0, (now - before).total_seconds())
        before = now
    return total if before is not None and total > 0 else None


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
