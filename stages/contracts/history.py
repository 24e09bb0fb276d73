"""The epoch values of a run, which retention, early stopping, curves and the summary use.

The names of metrics are also the names of files.
"""

import math
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from stages.contracts.errors import BuilderError


class Split(StrEnum):
    """A part of the data. The value is the name of its folder of logs."""

    TRAIN = "train"
    VALID = "valid"


class Direction(StrEnum):
    """The direction in which a metric improves."""

    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True)
class Value:
    """The value of a metric over an epoch of one split."""

    epoch: int
    """Counted from 1."""
    split: Split
    metric: str
    value: float


class Series:
    """The values of one metric on one split, ascending by epoch."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        """Counted from 1."""
        self.values = array("d")
        """One float64 for each epoch."""
        self._best: dict[tuple[Direction, float], _Best] = {}

    def add(self, epoch: int, value: float) -> None:
        """Add the *value* of *epoch*, or replace the one that *epoch* has."""
        if not self.epochs or epoch > self.epochs[-1]:
            self.epochs.append(epoch)
            self.values.append(value)
            return
        self._best.clear()
        place = bisect_left(self.epochs, epoch)
        if self.epochs[place] == epoch:
            self.values[place] = value
        else:
            self.epochs.insert(place, epoch)
            self.values.insert(place, value)

    def at(self, epoch: int) -> float | None:
        """Return the value of *epoch*; None if it has none."""
        place = bisect_left(self.epochs, epoch)
        return self.values[place] if epoch in self.epochs[place : place + 1] else None

    def best(self, direction: Direction, min_delta: float) -> int | None:
        """Return the last epoch that improved on all before by more than *min_delta*; None if none is finite.

        Each value is compared only once, also over several calls.
        """
        best = self._best.setdefault((direction, min_delta), _Best())
        sign = 1.0 if direction is Direction.LOWEST else -1.0
        for place in range(best.compared, len(self.values)):
            value = sign * self.values[place]
            if math.isfinite(value) and (best.epoch is None or value < best.value - min_delta):
                best.epoch, best.value = self.epochs[place], value
        best.compared = len(self.values)
        return best.epoch


@dataclass
class _Best:
    """The best among the first values of a series."""

    compared: int = 0
    """The number of values that were compared."""
    epoch: int | None = None
    value: float = math.inf
    """Negated if the highest is the best."""


class History:
    """All epoch values; a metric has one value for each split and epoch.

    The time to add the values of an epoch, and to look up an epoch, the last epoch and the best epoch, does
    not grow with the number of epochs.
    """

    def __init__(self, values: Iterable[Value] = ()) -> None:
        self._series: dict[tuple[Split, str], Series] = {}
        for value in values:
            self.add(value)

    def add(self, value: Value) -> None:
        """Add *value*; it replaces an earlier one of the same epoch, split and metric."""
        self._series.setdefault((value.split, value.metric), Series()).add(value.epoch, value.value)

    def __iter__(self) -> Iterator[Value]:
        """Iterate over all values: metric by metric, in the order of their first values."""
        for (split, metric), series in self._series.items():
            for epoch, value in zip(series.epochs, series.values, strict=True):
                yield Value(epoch, split, metric, value)

    def __len__(self) -> int:
        return sum(len(series.values) for series in self._series.values())

    @property
    def epochs(self) -> int:
        """The last epoch with a value, or 0."""
        return max((series.epochs[-1] for series in self._series.values()), default=0)

    def metrics(self) -> list[str]:
        """Return the names of all metrics, in alphabetical order."""
        return sorted({metric for _, metric in self._series})

    def columns(self) -> dict[tuple[Split, str], Series]:
        """Return split and metric to their values, in the order of the first values."""
        return dict(self._series)

    def at(self, epoch: int) -> list[Value]:
        """Return the values of *epoch*, in the order of their metrics' first values."""
        values = ((name, series.at(epoch)) for name, series in self._series.items())
        return [Value(epoch, *name, value) for name, value in values if value is not None]

    def series(self, split: Split, metric: str) -> dict[int, float]:
        """Return epoch to value, ascending; empty if the metric was not measured."""
        series = self._series.get((split, metric))
        return dict(zip(series.epochs, series.values, strict=True)) if series else {}

    def value(self, epoch: int, split: Split, metric: str) -> float | None:
        """Return one value; None if it was not measured."""
        series = self._series.get((split, metric))
        return series.at(epoch) if series else None

    def best(self, split: Split, metric: str, direction: Direction, *, min_delta: float = 0.0) -> int | None:
        """Return the epoch with the best finite value, the earlier of two equals, or None.

        A value is better if it beats the best before it by more than *min_delta*.
        """
        series = self._series.get((split, metric))
        return series.best(direction, min_delta) if series else None


MAX_NAME_BYTES = 200
"""The longest name; a file system has 255 bytes for it, an extension, and the marks of temporary files."""


def format_file_name(metric: str, extension: str) -> str:
    """Return *metric* with spaces replaced by ``_``, as Burn does, and the *extension*.

    Raises `BuilderError` for a name that leads out of its folder, that a table cannot contain, or that is too
    long for a file.
    """
    if not metric or ".." in metric or any(character in "/\\" or character < " " for character in metric):
        raise BuilderError(
            f"a metric is named {metric!r}, which cannot be the name of a file: rename it, without slashes, "
            "'..' and control characters"
        )
    if (size := len(os.fsencode(metric))) > MAX_NAME_BYTES:
        raise BuilderError(
            f"a metric is named {metric!r:.40}…, which has {size} bytes: use a name of at most "
            f"{MAX_NAME_BYTES}"
        )
    return f"{metric.replace(' ', '_')}.{extension}"


def check_file_names(metrics: Iterable[str]) -> None:
    """Raise `BuilderError` if one of *metrics* cannot be the name of a file, or two have the same file."""
    others: dict[str, str] = {}
    for metric in metrics:
        other = others.setdefault(format_file_name(metric, "log"), metric)
        if other != metric:
            raise BuilderError(
                f"metrics {other!r} and {metric!r} would share the file {format_file_name(metric, 'log')}: "
                "rename one of them"
            )
