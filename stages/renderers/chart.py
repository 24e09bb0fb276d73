"""Curves as characters."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotext
from rich.text import Text

from stages.contracts.history import Split
from stages.renderers.curves import Point

COLOURS = {Split.TRAIN: 39, Split.VALID: 208}
"""Of the 256 that terminals number: a blue and an orange, which nearly all eyes tell apart."""
SMALLEST = (12, 4)
"""Columns and rows that a chart needs."""
LARGEST_VALUE = 1e100
"""Beyond it plotext's arithmetic overflows; who sees such a number needs no more exact picture."""


def chart(
    curves: Mapping[Any, Sequence[Point]], width: int, height: int, *, colours: Mapping[Any, int] = COLOURS
) -> Text:
    """*curves* on common axes, *width* columns by *height* rows; says so where there is nothing to draw.

    *colours* are of the 256 that terminals number, by the curves' names.
    """
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        return Text("no points yet", style="dim")
    if width < SMALLEST[0] or height < SMALLEST[1]:
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
        marker = plotext.marker("braille", plotext.pixel(foreground=colours[name]))
        values = [clamped(value) for _, value in points]
        figure.draw(figure.signal([number for number, _ in points], values, marker=marker).lines())
    return Text.from_ansi(figure.build().string())


def _set_axes(figure: plotext.figure, curves: Sequence[Sequence[Point]], width: int, height: int) -> None:
    """Limits and ticks of our own: plotext's warn on standard output where values are close."""
    numbers = [number for points in curves for number, _ in points]
    values = [clamped(value) for points in curves for _, value in points]
    low, high = limits(min(values), max(values))
    steps = [low + (high - low) * share / 4 for share in range(5)][:: 1 if height >= 10 else 2]
    figure.ruler("y").lim(low, high).ticks(steps, labels(steps))
    first, last = min(numbers), max(numbers)
    intervals = 4 if width >= 60 else 2
    ticks = sorted({first + (last - first) * share // intervals for share in range(intervals + 1)})
    figure.ruler("x").lim(first, max(last, first + 1)).ticks(ticks, [str(tick) for tick in ticks])


def clamped(value: float) -> float:
    """*value*, or the nearest that can be drawn."""
    return max(-LARGEST_VALUE, min(LARGEST_VALUE, value))


def limits(low: float, high: float) -> tuple[float, float]:
    """Where the axis of values from *low* to *high* begins and ends: apart, also where they are the same."""
    size = max(abs(low), abs(high))
    if high - low > size * 1e-9 and high - low > 1e-100:
        return low, high
    margin = size / 10 or 1.0
    return low - margin, high + margin


def labels(steps: Sequence[float]) -> list[str]:
    """Each of the equal *steps* of an axis, with as many digits as tell them apart."""
    step = math.log10(abs(steps[1] - steps[0]))
    largest = math.log10(max(abs(value) for value in steps))
    decimals = max(0, 1 - math.floor(step))
    if decimals <= 5 and largest < 6:
        return [f"{value:.{decimals}f}" for value in steps]
    digits = max(1, math.ceil(largest - step) + 1)
    parts = [f"{value:.{digits}e}".split("e") for value in steps]
    return [f"{mantissa}e{int(exponent)}" for mantissa, exponent in parts]
