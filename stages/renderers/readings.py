"""What each metric came to, on the split at hand and on the one that rests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stages.contracts.events import Progress
from stages.contracts.history import Split

Source = tuple[Split, Callable[[], Mapping[str, float]], Callable[[], Mapping[str, float]]]


@dataclass(frozen=True)
class Reading:
    """A metric's two numbers."""

    running: float
    """Over the epoch so far."""
    latest: float | None
    """On the last batch; None where that has no value of its own."""


class Readings:
    """Asks for values only when told to: on an accelerator each asking waits."""

    def __init__(self) -> None:
        self._source: Source | None = None
        self._values: dict[Split, dict[str, Reading]] = {split: {} for split in Split}

    def take(self, progress: Progress) -> None:
        """Ask for the values of the split at hand, and once more for those of one that ended since."""
        source = (progress.split, progress.running, progress.latest)
        if self._source is not None and source != self._source:
            self._read(self._source)
        self._source = source
        self._read(source)

    def of(self, split: Split, metric: str) -> Reading | None:
        """What *metric* last was on *split*; None before its first batch there."""
        return self._values[split].get(metric)

    def metrics(self) -> list[str]:
        """The names of those that were read on either split."""
        return list(dict.fromkeys(name for values in self._values.values() for name in values))

    def _read(self, source: Source) -> None:
        split, running, latest = source
        last = latest()
        read = {name: Reading(value, last.get(name)) for name, value in running().items()}
        self._values[split] = read or self._values[split]
