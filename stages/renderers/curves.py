"""The points of a curve, in bounded memory however long the run."""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

from stages.contracts.history import Split

FULL = 250
"""Points of a split that the whole run is reduced to."""
RECENT = 1000
"""Points, of both splits together, that count as recent."""
PENDING = 256
"""Points taken in together: one at a time would cost more."""

Point = tuple[int, float]
VALUE = itemgetter(1)


class Curve:
    """One metric on both splits, along one count of points: valid ones follow their epoch's train points.

    Values that are not finite take a place on the axis and leave a gap.
    """

    def __init__(self) -> None:
        self._count = 0
        self._split = Split.TRAIN
        self._pending: list[float] = []
        self._full: dict[Split, list[Point]] = {split: [] for split in Split}
        self._recent: dict[Split, deque[Point]] = {split: deque(maxlen=RECENT) for split in Split}

    def add(self, split: Split, value: float) -> None:
        """Note the next point."""
        if split is not self._split or len(self._pending) >= PENDING:
            self._take_in()
            self._split = split
        self._pending.append(value)

    def __len__(self) -> int:
        """How many points there were."""
        return self._count + len(self._pending)

    def full(self) -> dict[Split, list[Point]]:
        """The whole run, at most `FULL` points a split."""
        self._take_in()
        return {split: reduced(points, FULL) for split, points in self._full.items()}

    def recent(self) -> dict[Split, list[Point]]:
        """The last `RECENT` points; at most `FULL` a split, which few terminals have dots for."""
        self._take_in()
        first = self._count - RECENT
        return {
            split: reduced([point for point in points if point[0] > first], FULL)
            for split, points in self._recent.items()
        }

    def _take_in(self) -> None:
        numbered = enumerate(self._pending, self._count + 1)
        points = [(number, value) for number, value in numbered if math.isfinite(value)]
        self._count += len(self._pending)
        self._pending.clear()
        self._recent[self._split].extend(points)
        full = self._full[self._split]
        full += points
        if len(full) > 4 * FULL:
            full[:] = reduced(full, FULL)


def reduced(points: Sequence[Point], limit: int) -> list[Point]:
    """At most *limit* (4 or more) of *points*: first, last, and the lowest and highest of equal stretches.

    Doing it again to what it gave, with more points behind, loses no extreme either.
    """
    if len(points) <= limit:
        return list(points)
    stretches = limit // 2 - 1
    start, end = points[0][0], points[-1][0]
    bounds = [start + (end - start) * number / stretches for number in range(1, stretches)]
    cuts = [0, *(bisect_left(points, (bound,)) for bound in bounds), len(points)]
    kept = {points[0], points[-1]}
    for here, there in pairwise(cuts):
        if stretch := points[here:there]:
            kept |= {min(stretch, key=VALUE), max(stretch, key=VALUE)}
    return sorted(kept)
