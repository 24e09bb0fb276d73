"""Plots of runs: the charts of ``learner plot``, and Vega-Lite specifications from the templates of DVC.

The templates are those of the packages. One of the repository, in ``.dvc/plots``, would be a program: it may
load data from any address, and compute without an end.
"""

import json
import math
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dvc_render.vega import VegaRenderer
from dvc_render.vega_templates import LinearTemplate, Template
from rich.console import Console
from rich.text import Text

from pipeline.comparison.collection import CurvePoint, read_iterations, summarize
from pipeline.comparison.plot_images import draw_image
from pipeline.comparison.runs import select_metrics
from pipeline.project.revisions.files import read_runs
from stages.contracts.errors import StageError
from stages.contracts.printing import print_line
from stages.contracts.text import replace_unprintable
from stages.renderers.chart import draw_chart, reduce_points
from stages.system.files import open_atomic

CHART_ROWS = 16
"""Height of a chart in the terminal."""
MAX_CHART_COLUMNS = 120
"""Width of a chart in a wide terminal."""
MAX_CHART_POINTS = 5_000
"""Points of all curves in the terminal together. Each segment takes memory for the dots on its way."""
MAX_IMAGE_POINTS = 20_000
"""Points of all curves of an image together, of which Vega takes 10 kB each."""
MIN_POINTS = 4
"""Points of each curve, of however many runs: the first, the last, the lowest and the highest."""
TERMINAL_COLORS = (39, 208, 77, 141, 220, 51, 211, 137, 250, 111)
"""Of the 256 colors of a terminal; they repeat from the eleventh run on."""
LEGEND_MARK = "━━"
Curves = Mapping[str, Mapping[str, Sequence[CurvePoint]]]
"""``split/metric`` to run to points."""
CONFUSION = "confusion_counts"
"""Name of the template for the confusion matrix, as in dvc.yaml, of which ``learner init`` writes a copy."""
PALETTE = (
    "#4269d0",
    "#ff725c",
    "#3ca951",
    "#a463f2",
    "#d69400",
    "#17a2b8",
    "#e0679b",
    "#9c6b4e",
    "#7d828c",
    "#7fa8ef",
)
"""Colors that differ on white and on black; the first ones also for most color-blind readers."""
DASHES = {"train": [5, 4], "valid": [1, 0]}
Spec = dict[str, Any]


def plot(metric: str, revs: Sequence[str], images: Mapping[str, Path], *, iterations: bool) -> None:
    """Draw *metric* of *revs* as *images*, by their format, or in the terminal if *images* is empty.

    Raises `ParamsError` for an unknown metric or revision, `StageError` if none of its values is cached.
    """
    revisions = read_runs(revs or None)
    comparison = summarize(revisions)
    names = select_metrics(comparison, [metric])
    max_points = MAX_IMAGE_POINTS if images else MAX_CHART_POINTS
    limit = max(MIN_POINTS, max_points // (len(names) * len(revisions)))
    runs = [run.name for run in comparison.runs]
    curves: dict[str, dict[str, Sequence[CurvePoint]]] = {name: {} for name in names}
    for run in comparison.runs:
        points: Mapping[str, Iterable[CurvePoint]] = {
            name: run.metrics[name].series.items() for name in names if name in run.metrics
        }
        if iterations:
            points = read_iterations(revisions[run.name], names)
        for name in points:
            curves[name][run.name] = _reduce(points[name], limit)
    if not any(curves.values()):
        raise StageError(f"no run has {metric!r} for every batch. Run `fit` of version 4 or later")
    for form, path in images.items():
        with open_atomic(path) as file:
            spec = _spec(metric, curves, runs, x="step" if iterations else "epoch")
            file.write(draw_image(spec, form))
        print_line(f"wrote {path}")
    if not images:
        width = min(shutil.get_terminal_size().columns, MAX_CHART_COLUMNS)
        Console(width=width, highlight=False).print(_terminal_charts(curves, runs, width), end="")


def _reduce(points: Iterable[CurvePoint], limit: int) -> list[CurvePoint]:
    """Return at most *limit* of *points*, among them the extremes; NaN, which is not drawn, is left out."""
    points = list(points)
    if len(points) <= limit:
        return points
    return reduce_points([point for point in points if not math.isnan(point[1])], limit)


def _spec(metric: str, curves: Curves, runs: Sequence[str], *, x: str) -> Spec:
    """Return DVC's template ``linear`` with *curves*: a color for each of *runs*, a dash for each split."""
    values = [
        {"rev": run, "split": name.partition("/")[0], x: step, "value": value}
        for name, by_run in curves.items()
        for run, points in by_run.items()
        for step, value in points
        if math.isfinite(value)
    ]
    if not values:
        raise StageError(f"{metric!r} has no finite value in any of these runs. Name another metric or run")
    colors = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(runs)}
    splits = {name.partition("/")[0] for name, by_run in curves.items() if by_run}
    spec = empty_curves_spec(splits, x=x, title=metric.rpartition("/")[2], color_of=colors)
    spec["data"]["values"] = values
    return spec | {"width": 640, "height": 380, "background": "white"}


def _terminal_charts(curves: Curves, runs: Sequence[str], width: int) -> Text:
    """Return a chart and a legend for each ``split/metric``. NaN is omitted; infinity is at the edge."""
    colors = {name: TERMINAL_COLORS[index % len(TERMINAL_COLORS)] for index, name in enumerate(runs)}
    text = Text()
    for title, by_run in curves.items():
        drawn = {
            run: [point for point in points if not math.isnan(point[1])] for run, points in by_run.items()
        }
        text.append(f"{replace_unprintable(title)}\n", style="bold")
        text.append(draw_chart(drawn, width, CHART_ROWS, colors=colors))
        text.append("\n")
        for name in (name for name in runs if drawn.get(name)):
            text.append(f"{LEGEND_MARK} ", style=f"color({colors[name]})")
            text.append(f"{replace_unprintable(name)}  ")
        text.append("\n")
    return text


def empty_curves_spec(splits: Collection[str], *, x: str, title: str, color_of: Mapping[str, str]) -> Spec:
    """Return DVC's template ``linear`` without points: with them, it searches each for new runs, slowly."""
    spec = _fill_template(
        LinearTemplate(),
        {"rev": "", "split": "", x: 0, "value": 0},
        x=x,
        y="value",
        title=title,
        y_label=title,
    )
    spec["encoding"]["color"] = _scale("rev", "run", color_of)
    if len(splits) > 1:
        spec["encoding"]["strokeDash"] = _scale("split", "split", DASHES)
    smoothed, *_ = spec["layer"]
    smoothed["transform"][0]["groupby"] = ["rev", "split"]
    spec["layer"][-1]["transform"][0]["calculate"] = "datum.rev + ' ' + datum.split"
    return spec


def empty_confusion_spec() -> Spec:
    """Return the template ``confusion_counts`` without points."""
    text = (files("pipeline.scaffold") / "template" / f"{CONFUSION}.json").read_text("utf-8")
    point = {"rev": "", "actual": "", "predicted": "", "count": 0}
    return _fill_template(Template(json.loads(text), CONFUSION), point, x="predicted", y="actual", title="")


def _fill_template(template: Template, point: dict[str, Any], **properties: str) -> Spec:
    """Return *template* for points with the keys of *point*, without data."""
    renderer = VegaRenderer([point], "", template=template, **properties)
    spec: Spec = renderer.get_filled_template(strict=False)
    spec.pop("$schema", None)  # the URL of the version for which the template was written
    spec["data"] = {"values": []}
    return spec


def _scale(field: str, title: str, values: Mapping[str, Any]) -> Spec:
    return {
        "field": field,
        "title": title,
        "type": "nominal",
        "scale": {"domain": list(values), "range": list(values.values())},
        "legend": {"symbolType": "stroke", "symbolSize": 400},
    }
