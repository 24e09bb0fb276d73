"""The plots of ``learner plot``: one metric of several runs, in the terminal or as an image."""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from pipeline import plot_images
from pipeline.comparison.collection import summarize
from pipeline.comparison.curves import CurvePoint, PlotData, read_plot_data
from pipeline.comparison.runs import Comparison
from pipeline.comparison.specs import assign_colors, curves_spec, has_finite_value
from pipeline.comparison.view import select_metrics
from pipeline.revisions.files import read_revisions
from stages.contracts.errors import StageError
from stages.contracts.files import open_atomic
from stages.contracts.text import replace_unprintable
from stages.renderers.chart import draw_chart

RENDERERS = {"svg": plot_images.svg, "png": plot_images.png}
CHART_ROWS = 16
"""Height of a chart in the terminal."""
MAX_CHART_COLUMNS = 120
"""Width of a chart in a wide terminal."""
TERMINAL_COLORS = (39, 208, 77, 141, 220, 51, 211, 137, 250, 111)
"""Of the 256 colors of a terminal; they repeat from the eleventh run on."""
LEGEND_MARK = "━━"
Curves = Mapping[str, Mapping[str, Sequence[CurvePoint]]]
"""``split/metric`` to run to points."""


def plot(metric: str, revs: Sequence[str], images: Mapping[str, Path], *, iterations: bool) -> None:
    """Draw *metric* of *revs* as *images*, by their format, or in the terminal if there are none.

    Raises `ParamsError` for an unknown metric or revision, `StageError` if none of its values is cached.
    """
    revisions = read_revisions(revs or None)
    comparison = summarize(revisions)
    names = select_metrics(comparison, [metric])
    curves = _batches(read_plot_data(revisions), names) if iterations else _epochs(comparison, names)
    runs = [run.name for run in comparison.runs]
    if not any(curves.values()):
        raise StageError(f"no run has {metric!r} for every batch. Run `fit` of version 4 or later")
    for form, path in images.items():
        with open_atomic(path) as file:
            file.write(RENDERERS[form](_spec(metric, curves, runs, x="step" if iterations else "epoch")))
        typer.echo(f"wrote {path}")
    if not images:
        width = min(shutil.get_terminal_size().columns, MAX_CHART_COLUMNS)
        Console(width=width, highlight=False).print(_terminal_charts(curves, runs, width), end="")


def _epochs(comparison: Comparison, names: Sequence[str]) -> Curves:
    return {
        name: {
            run.name: list(run.metrics[name].series.items()) for run in comparison.runs if name in run.metrics
        }
        for name in names
    }


def _batches(data: Mapping[str, PlotData], names: Sequence[str]) -> Curves:
    return {
        name: {run: each.iterations[name] for run, each in data.items() if name in each.iterations}
        for name in names
    }


def _spec(metric: str, curves: Curves, runs: Sequence[str], *, x: str) -> dict[str, Any]:
    series = {
        (run, name.partition("/")[0]): points
        for name, by_run in curves.items()
        for run, points in by_run.items()
    }
    if not has_finite_value(series):
        raise StageError(f"{metric!r} has no finite value in any of these runs. Name another metric or run")
    spec = curves_spec(series, x=x, title=metric.rpartition("/")[2], color_of=assign_colors(runs))
    return spec | {"width": 640, "height": 380, "background": "white"}


def _terminal_charts(curves: Curves, runs: Sequence[str], width: int) -> Text:
    """Return a chart and a legend for each ``split/metric``. NaN is omitted; infinity is at the edge."""
    colors = {name: TERMINAL_COLORS[index % len(TERMINAL_COLORS)] for index, name in enumerate(runs)}
    text = Text()
    for title, by_run in curves.items():
        drawn = {
            run: [point for point in points if not math.isnan(point[1])] for run, points in by_run.items()
        }
        text.append(f"{title}\n", style="bold")
        text.append(draw_chart(drawn, width, CHART_ROWS, colors=colors))
        text.append("\n")
        for name in (name for name in runs if drawn.get(name)):
            text.append(f"{LEGEND_MARK} ", style=f"color({colors[name]})")
            text.append(f"{replace_unprintable(name)}  ")
        text.append("\n")
    return text
