"""Charts of a metric: curves with a bounded number of points, drawn as characters."""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import plotext
from rich.text import Text

from stages.contracts.history import Split

MAX_POINTS = 250
"""Points per split in a chart, as in Burn."""
RECENT_POINTS = 1000
"""Points of both splits together that the view of recent points covers, as in Burn."""
MAX_PENDING_POINTS = 256
"""Points that are added to a curve together, because adding them one by one is slower."""
SPLIT_COLORS = {Split.TRAIN: 39, Split.VALID: 208}
"""Of the 256 colors of a terminal: a blue and an orange that most color-blind people can distinguish."""
MIN_CHART_SIZE = (12, 4)
"""Columns and rows that a chart needs."""
MAX_PLOTTED_VALUE = 1e100
"""Larger values are drawn at this height, because the arithmetic of plotext overflows."""

Point = tuple[int, float]
"""The number of a point, from 1, and its value."""


class Curve:
    """The values of one metric on both splits, in bounded memory.

    Both splits share one numbering: the valid points of an epoch follow its train points. A value that is not
    finite has a number but no point, so it leaves a gap.
    """

    def __init__(self) -> None:
        self._count = 0
        self._split = Split.TRAIN
        self._pending: list[float] = []
        self._full: dict[Split, list[Point]] = {split: [] for split in Split}
        self._recent: dict[Split, deque[Point]] = {split: deque(maxlen=RECENT_POINTS) for split in Split}

    def add(self, split: Split, value: float) -> None:
        """Append a point."""
        if split is not self._split or len(self._pending) >= MAX_PENDING_POINTS:
            self._add_pending()
            self._split = split
        self._pending.append(value)

    def __len__(self) -> int:
        """Return the number of added points."""
        return self._count + len(self._pending)

    def sample_all(self) -> dict[Split, list[Point]]:
        """Return at most `MAX_POINTS` points of each split, sampled from all points."""
        self._add_pending()
        return {split: reduce_points(points, MAX_POINTS) for split, points in self._full.items()}

    def sample_recent(self) -> dict[Split, list[Point]]:
        """Return at most `MAX_POINTS` points of each split, sampled from the last `RECENT_POINTS` points."""
        self._add_pending()
        first = self._count - RECENT_POINTS
        return {
            split: reduce_points([point for point in points if point[0] > first], MAX_POINTS)
            for split, points in self._recent.items()
        }

    def _add_pending(self) -> None:
        numbered = enumerate(self._pending, self._count + 1)
        points = [(number, value) for number, value in numbered if math.isfinite(value)]
        self._count += len(self._pending)
        self._pending.clear()
        self._recent[self._split].extend(points)
        full = self._full[self._split]
        full += points
        if len(full) > 4 * MAX_POINTS:
            full[:] = reduce_points(full, MAX_POINTS)


def reduce_points(points: Sequence[Point], limit: int) -> list[Point]:
    """Return at most *limit* (4 or more) of *points*: the first, the last, and the extremes between them.

    The extremes are the lowest and the highest point of each of ``limit // 2 - 1`` intervals of equal length.
    The highest and the lowest point of all remain, also if the result with more points is reduced again.
    """
    if len(points) <= limit:
        return list(points)
    intervals = limit // 2 - 1
    start, end = points[0][0], points[-1][0]
    bounds = [start + (end - start) * number / intervals for number in range(1, intervals)]
    cuts = [0, *(bisect_left(points, (bound,)) for bound in bounds), len(points)]
    reduced = {points[0], points[-1]}
    value = itemgetter(1)
    for first, after_last in pairwise(cuts):
        if interval := points[first:after_last]:
            reduced |= {min(interval, key=value), max(interval, key=value)}
    return sorted(reduced)


def draw_chart(
    curves: Mapping[Any, Sequence[Point]],
    width: int,
    height: int,
    *,
    colors: Mapping[Any, int] = SPLIT_COLORS,
) -> Text:
    """Return *curves* on common axes as text of *width* columns by *height* rows.

    *colors* maps the name of each curve to one of the 256 colors of a terminal. The text is a short notice if
    there is no point, or if the size is below `MIN_CHART_SIZE`.
    """
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        return Text("no points yet", style="dim")
    if width < MIN_CHART_SIZE[0] or height < MIN_CHART_SIZE[1]:
        return Text("no room", style="dim")
    figure = plotext.figure
    plotext.terminal.limit(width=False, height=False)
    figure.clear()
    figure.plot_size(width, height)
    figure.theme("colorless")
    figure.axes(active=False, axis="x", side="upper")
    figure.axes(active=False, axis="y", side="right")
    _set_axes(figure, list(drawn.values()), width, height)
    for name, points in drawn.items():
        marker = plotext.marker("braille", plotext.pixel(foreground=colors[name]))
        values = [clamp_value(value) for _, value in points]
        figure.draw(figure.signal([number for number, _ in points], values, marker=marker).lines())
    return Text.from_ansi(figure.build().string())


def _set_axes(figure: plotext.figure, curves: Sequence[Sequence[Point]], width: int, height: int) -> None:
    """Set the limits and ticks; those of plotext print warnings on standard output for close values."""
    numbers = [number for points in curves for number, _ in points]
    values = [clamp_value(value) for points in curves for _, value in points]
    low, high = compute_axis_limits(min(values), max(values))
    ticks = [low + (high - low) * share / 4 for share in range(5)][:: 1 if height >= 10 else 2]
    figure.ruler("y").lim(low, high).ticks(ticks, format_ticks(ticks))
    first, last = min(numbers), max(numbers)
    intervals = 4 if width >= 60 else 2
    counts = sorted({first + (last - first) * share // intervals for share in range(intervals + 1)})
    figure.ruler("x").lim(first, max(last, first + 1)).ticks(counts, [str(count) for count in counts])


def clamp_value(value: float) -> float:
    """Return *value*, limited to plus or minus `MAX_PLOTTED_VALUE`."""
    return max(-MAX_PLOTTED_VALUE, min(MAX_PLOTTED_VALUE, value))


def compute_axis_limits(low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis for values from *low* to *high*; almost equal values get a margin."""
    size = max(abs(low), abs(high))
    if high - low > size * 1e-9 and high - low > 1e-100:
        return low, high
    margin = size / 10 or 1.0
    return low - margin, high + margin


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Return the labels of evenly spaced *ticks*, with enough digits to distinguish them."""
    step = math.log10(abs(ticks[1] - ticks[0]))
    largest = math.log10(max(abs(value) for value in ticks))
    decimals = max(0, 1 - math.floor(step))
    if decimals <= 5 and largest < 6:
        return [f"{value:.{decimals}f}" for value in ticks]
    digits = max(1, math.ceil(largest - step) + 1)
    parts = [f"{value:.{digits}e}".split("e") for value in ticks]
    return [f"{mantissa}e{int(exponent)}" for mantissa, exponent in parts]
