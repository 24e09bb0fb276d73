"""Plots of runs: the charts of ``learner plot``, and Vega-Lite specifications from the templates of DVC."""

import math
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dvc.repo import Repo
from dvc_render.exceptions import DvcRenderError
from dvc_render.vega import VegaRenderer
from rich.console import Console
from rich.text import Text

from pipeline.comparison.collection import CurvePoint, read_iterations, summarize
from pipeline.comparison.plot_images import draw_image
from pipeline.comparison.runs import Comparison, select_metrics
from pipeline.project.revisions.files import RevisionFiles, read_runs
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
"""Name of the template for the confusion matrix, as in dvc.yaml."""
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
Series = Mapping[tuple[str, str], Iterable[CurvePoint]]
"""Run and split to points."""


def plot(metric: str, revs: Sequence[str], images: Mapping[str, Path], *, iterations: bool) -> None:
    """Draw *metric* of *revs* as *images*, by their format, or in the terminal if *images* is empty.

    Raises `ParamsError` for an unknown metric or revision, `StageError` if none of its values is cached.
    """
    revisions = read_runs(revs or None)
    comparison = summarize(revisions)
    names = select_metrics(comparison, [metric])
    points = MAX_IMAGE_POINTS if images else MAX_CHART_POINTS
    limit = max(MIN_POINTS, points // (len(names) * len(revisions)))
    read = partial(_batches, revisions) if iterations else partial(_epochs, comparison)
    curves = read(names, limit)
    runs = [run.name for run in comparison.runs]
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


def _epochs(comparison: Comparison, names: Sequence[str], limit: int) -> Curves:
    return {
        name: {
            run.name: _reduce(run.metrics[name].series.items(), limit)
            for run in comparison.runs
            if name in run.metrics
        }
        for name in names
    }


def _batches(revisions: Mapping[str, RevisionFiles], names: Sequence[str], limit: int) -> Curves:
    curves: dict[str, dict[str, Sequence[CurvePoint]]] = {name: {} for name in names}
    for run, files in revisions.items():
        for name, points in read_iterations(files, names).items():
            curves[name][run] = _reduce(points, limit)
    return curves


def _reduce(points: Iterable[CurvePoint], limit: int) -> list[CurvePoint]:
    """Return at most *limit* of *points*, among them the extremes; NaN, which is not drawn, is left out."""
    points = list(points)
    if len(points) <= limit:
        return points
    return reduce_points([point for point in points if not math.isnan(point[1])], limit)


def _spec(metric: str, curves: Curves, runs: Sequence[str], *, x: str) -> Spec:
    series = {
        (run, name.partition("/")[0]): points
        for name, by_run in curves.items()
        for run, points in by_run.items()
    }
    if not any(math.isfinite(value) for curve in series.values() for _, value in curve):
        raise StageError(f"{metric!r} has no finite value in any of these runs. Name another metric or run")
    colors = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(runs)}
    spec = curves_spec(series, x=x, title=metric.rpartition("/")[2], color_of=colors)
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


def curves_spec(series: Series, *, x: str, title: str, color_of: Mapping[str, str]) -> Spec:
    """Return DVC's template ``linear`` with *series*: a color for each run, a dash for each split."""
    spec = empty_curves_spec({split for _, split in series}, x=x, title=title, color_of=color_of)
    spec["data"]["values"] = [
        {"rev": run, "split": split, x: step, "value": value}
        for (run, split), curve in series.items()
        for step, value in curve
        if math.isfinite(value)
    ]
    return spec


def empty_curves_spec(splits: Collection[str], *, x: str, title: str, color_of: Mapping[str, str]) -> Spec:
    """Return the same without points.

    With points the template searches each of them for new runs, which is slow.
    """
    spec = _fill_template(
        "linear", {"rev": "", "split": "", x: 0, "value": 0}, x=x, y="value", title=title, y_label=title
    )
    spec["encoding"]["color"] = _scale("rev", "run", color_of)
    if len(splits) > 1:
        spec["encoding"]["strokeDash"] = _scale("split", "split", DASHES)
    smoothed, *_ = spec["layer"]
    smoothed["transform"][0]["groupby"] = ["rev", "split"]
    spec["layer"][-1]["transform"][0]["calculate"] = "datum.rev + ' ' + datum.split"
    return spec


def empty_confusion_spec() -> Spec:
    """Return the template ``confusion_counts`` without points. Raises `StageError` if it is missing."""
    return _fill_template(
        CONFUSION, {"rev": "", "actual": "", "predicted": "", "count": 0}, x="predicted", y="actual", title=""
    )


def _fill_template(template: str, point: dict[str, Any], **properties: str) -> Spec:
    """Return *template* for points with the keys of *point*, without data."""
    folder = Path(Repo.find_root()) / ".dvc" / "plots"
    try:
        renderer = VegaRenderer([point], "", template=template, template_dir=str(folder), **properties)
        spec: Spec = renderer.get_filled_template(strict=False)
    except (DvcRenderError, OSError, ValueError) as error:
        raise StageError(
            f"the plot template {template!r} in {folder} cannot be used: {error}. Run `git checkout {folder}`"
        ) from error
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
