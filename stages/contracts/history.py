"""The numbers so far: what retention, stopping, curves and the summary decide from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Split(StrEnum):
    """Which part of the data a number was measured on. The value names the folder and the log."""

    TRAIN = "train"
    VALID = "valid"


class Direction(StrEnum):
    """Which of two values is the better one."""

    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True)
class Value:
    """What a metric came to over a whole epoch of one split."""

    epoch: int
    """From 1."""
    split: Split
    metric: str
    value: float


class History:
    """Every epoch value, in the order it was measured; a metric has one value a split and epoch."""

    def __init__(self, values: Iterator[Value] | tuple[Value, ...] = ()) -> None:
        self._values: dict[tuple[int, Split, str], Value] = {}
        for value in values:
            self.add(value)

    def add(self, value: Value) -> None:
        """Note *value*; a second one for the same epoch, split and metric takes its place."""
        self._values[value.epoch, value.split, value.metric] = value

    def __iter__(self) -> Iterator[Value]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    @property
    def epochs(self) -> int:
        """The last epoch with a value; 0 where there is none."""
        return max((value.epoch for value in self), default=0)

    def metrics(self) -> list[str]:
        """The names of all metrics, in alphabetical order."""
        return sorted({value.metric for value in self})

    def series(self, split: Split, metric: str) -> dict[int, float]:
        """Epoch to value, ascending; empty where nothing was measured."""
        found = {v.epoch: v.value for v in self if v.split == split and v.metric == metric}
        return dict(sorted(found.items()))

    def best(self, split: Split, metric: str, direction: Direction) -> int | None:
        """The epoch with the best finite value, the earlier of two equals; None where there is none."""
        series = self.series(split, metric)
        finite = {epoch: value for epoch, value in series.items() if math.isfinite(value)}
        if not finite:
            return None
        sign = 1.0 if direction is Direction.LOWEST else -1.0
        return min(finite, key=lambda epoch: (sign * finite[epoch], epoch))
