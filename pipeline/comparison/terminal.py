"""Curves of several runs in a terminal, a chart a metric and split."""

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from pipeline.comparison.points import Point
from stages.contracts.text import printable
from stages.renderers.chart import chart

COLOURS = (39, 208, 77, 141, 220, 51, 211, 137, 250, 111)
"""Of the 256 that terminals number; from the eleventh run on they come again."""
SIGN = "━━"


def terminal_charts(
    curves: Mapping[str, Mapping[str, Sequence[Point]]], names: Sequence[str], width: int, height: int
) -> Text:
    """A chart for each ``split/metric`` in *curves*, of run to points, and below it whose colour is whose.

    What is no number is left out; an infinity stands at the edge.
    """
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    text = Text()
    for title, runs in curves.items():
        drawn = {run: [point for point in points if not math.isnan(point[1])] for run, points in runs.items()}
        text.append(f"{title}\n", style="bold")
        text.append(chart(drawn, width, height, colours=colours))
        text.append("\n")
        for name in (name for name in names if drawn.get(name)):
            text.append(f"{SIGN} ", style=f"color({colours[name]})")
            text.append(f"{printable(name)}  ")
        text.append("\n")
    return text
