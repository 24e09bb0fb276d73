"""How long runs took, from the records beside the run stores; no tracked output depends on the clock."""

from functools import cached_property
from pathlib import Path

from stages.contracts.files import md5
from stages.runs.durations import read_durations, worked_seconds_of
from stages.runs.layout import stores


class Durations:
    """The durations of the runs whose stores are or were below *root*, by their metrics."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def seconds(self, metrics_md5: str | None) -> float | None:
        """Return the seconds of the run whose metrics.json has that md5; None unless exactly one has it."""
        found = self._found.get(metrics_md5 or "", {})
        return next(iter(found.values())) if len(found) == 1 else None

    @cached_property
    def _found(self) -> dict[str, dict[str, float | None]]:
        """Return md5 to run key to seconds; stores that an older version finished have no record."""
        found: dict[str, dict[str, float | None]] = {}
        for store in stores(self._root):
            if metrics := md5(store / "metrics.json"):
                found.setdefault(metrics, {})[store.name] = None
        for metrics, seconds in read_durations(self._root).items():
            found.setdefault(metrics, {}).update(seconds)
        for runs in found.values():
            for key in [key for key, seconds in runs.items() if seconds is None]:
                runs[key] = worked_seconds_of(self._root / key)
        return found
