"""A comparison as one HTML page that contains all it needs, makes no request and works offline.

Names and params are data that the page only displays as text. The only scripts that run are the two that it
is built with. Curves and confusion matrices are stored as columns of numbers, so that many runs make a small
page.
"""

import base64
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from pipeline.comparison.collection import Cell, CurvePoint, PlotData, thin, thin_steps
from pipeline.comparison.plot_images import vega_script
from pipeline.comparison.plots import PALETTE, empty_confusion_spec, empty_curves_spec
from pipeline.comparison.runs import (
    Comparison,
    MetricCurve,
    RunSummary,
    ViewOptions,
    select_metrics,
    sort_runs,
)
from pipeline.comparison.tables import ABSENT, TableColumn, columns, format_value, metric_columns

SCRIPTS = ("model.js", "charts.js", "state.js", "tables.js", "cards.js", "page.js")
"""The parts of the script of the page, in the order in which they run."""
MAX_EPOCHS = 256
"""Epochs of a run on the page, in addition to those with an extreme value."""
MAX_BATCHES = 256
"""Points of a curve of batches on the page."""
Tree = dict[str, Any]
StepColumns = dict[tuple[int, ...], int]
"""The epochs and steps of all curves, to their index; a column that several curves have is stored once."""


@dataclass(frozen=True)
class PageContent:
    """The data of a page, as JSON in which no text can end the script element around it."""

    table: str
    plots: str

    @property
    def json(self) -> str:
        """The data as one object."""
        return f'{{"table":{self.table},"plots":{self.plots}}}'

    @cached_property
    def tag(self) -> str:
        """A hash of the data, with the quotes of an HTTP entity tag."""
        return f'"{hashlib.sha256(self.json.encode()).hexdigest()}"'


def build_content(
    comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions
) -> PageContent:
    """Return the data of the page. Raises `ParamsError` for an unknown metric or sort key."""
    return PageContent(
        _json(build_table_data(comparison, view)), _json(build_plots_data(comparison, plot_data, view))
    )


def build_page(comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions) -> str:
    """Return the page. Raises `StageError` if the extra ``page`` is not installed."""
    return _fill_template(build_content(comparison, plot_data, view), attributes="", policy="")


def build_watched_page(content: PageContent) -> str:
    """Return the page that asks its server for newer data; otherwise it is the same."""
    attributes = f" data-tag='{content.tag}'"
    return _fill_template(content, attributes=attributes, policy="connect-src 'self'; ")


def _fill_template(content: PageContent, *, attributes: str, policy: str) -> str:
    parts = files("pipeline.comparison") / "web"
    scripts = _scripts()
    contents = {
        **scripts,
        "css": (parts / "page.css").read_text("utf-8"),
        "data": content.table,
        "plots": content.plots,
        "hashes": " ".join(map(_hash, scripts.values())),
        "attributes": attributes,
        "policy": policy,
    }
    text = (parts / "page.html").read_text("utf-8")
    before, *rest = text.split("{")  # one pass, so that inserted contents are not searched again
    pieces = (piece.partition("}") for piece in rest)
    return before + "".join(contents[name] + after for name, _, after in pieces)


@cache
def _scripts() -> dict[str, str]:
    parts = files("pipeline.comparison") / "web"
    return {
        # without text that would end the element; `<\\/` means the same in JavaScript
        "vega": vega_script().replace("</script", "<\\/script").replace("<!--", "<\\!--"),
        "js": "".join((parts / name).read_text("utf-8") for name in SCRIPTS),
    }


def _json(data: Tree) -> str:
    """Return *data* as JSON in which no text can end the script element around it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def build_table_data(comparison: Comparison, view: ViewOptions) -> Tree:
    """Return the runs in the order of *view* and their columns, with a value for each run.

    Columns that are not ``listed`` have no place in the table, but filters and charts may use them.
    """
    runs = sort_runs(comparison, view)
    listed = columns(comparison, view)
    keys = {column.key for column in listed}
    rest = [column for name in comparison.metrics for column in metric_columns(comparison, name)]
    others = [column for column in rest if column.key not in keys and column.role in ("last", "best")]
    return {
        "summary": _summary(comparison),
        "baseline": comparison.baseline.name,
        "palette": PALETTE,
        "runs": [{"name": run.name, "sha": run.sha, "notes": list(run.notes)} for run in runs],
        "columns": [
            _column(comparison, column, runs) | {"listed": column.key in keys}
            for column in (*listed, *others)
        ],
        "params": _params(runs),
    }


def build_plots_data(comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions) -> Tree:
    """Return the curves and the confusion matrices of the same runs, in the same order."""
    runs = sort_runs(comparison, view)
    metrics = select_metrics(comparison, view.metrics or comparison.metrics)
    steps, classes = StepColumns(), dict[tuple[Cell, ...], int]()
    epochs = _epoch_curves(runs, metrics, steps)
    iterations: dict[str, list[Tree]] = {}
    matrices, samples = [], []
    for index, run in enumerate(runs):
        plots = plot_data.get(run.name, PlotData())
        for title, curve in _batch_curves(index, plots, metrics, steps):
            iterations.setdefault(title, []).append(curve)
        matrices.append(_matrix_data(plots.confusion, classes))
        samples.append([_sample_data(*sample) for sample in plots.samples.items()])
        del plots  # before those of the next run are read
    charts = {"epochs": _charts(epochs, "epoch"), "iterations": _charts(iterations, "step")}
    confusion = {"spec": empty_confusion_spec(), "runs": matrices, "classes": list(classes)}
    data = {"charts": charts, "steps": list(steps), "confusion": confusion if any(matrices) else None}
    return data | ({"samples": samples} if any(samples) else {})


def select_epochs(curves: Sequence[MetricCurve]) -> list[int]:
    """Return the epochs of one run for the page: at most `MAX_EPOCHS`, and the extremes of each curve.

    Extremes are the first and the last epoch, and those with the lowest, the highest and the best value.
    """
    epochs = set(thin_steps(sorted(set().union(*(curve.series for curve in curves))), MAX_EPOCHS))
    for curve in curves:
        finite = {epoch: value for epoch, value in curve.series.items() if math.isfinite(value)}
        if finite:
            for extreme in (min, max):
                epochs |= {extreme(finite), extreme(finite, key=finite.__getitem__)}
        if curve.best_epoch is not None:
            epochs.add(curve.best_epoch)
    return sorted(epochs)


def _summary(comparison: Comparison) -> str:
    count = len(comparison.runs)
    differing = len(comparison.differing)
    return (
        f"{count} run{'s' * (count != 1)}, {differing or 'no'} param{'s' * (differing != 1)} that "
        f"differ{'s' * (differing == 1)}"
    )


def _params(runs: Sequence[RunSummary]) -> dict[str, list[str | None]]:
    keys = dict.fromkeys(key for run in runs for key in run.params)
    return {
        key: [format_value(run.params[key]) if key in run.params else None for run in runs] for key in keys
    }


def _column(comparison: Comparison, column: TableColumn, runs: Sequence[RunSummary]) -> Tree:
    """Return the values of a column; a delta has none, because the reader chooses the baseline."""
    values = [column.value(run) for run in runs]
    entry = {
        "title": column.title,
        "key": column.key,
        "role": column.role,
        "metric": column.metric,
        "better": _direction(comparison, column.metric),
        "numeric": column.numeric,
    }
    if column.role == "delta":
        return entry
    return entry | {
        "scale": _scale(values),
        "shown": [ABSENT if value is None else column.text(value) for value in values],
        "order": [_sort_value(value) for value in values],
    }


def _direction(comparison: Comparison, metric: str | None) -> str | None:
    curves = (run.metrics.get(metric or "") for run in comparison.runs)
    return next((curve.better for curve in curves if curve is not None), None)


def _scale(values: Iterable[Any]) -> str:
    """Return ``number`` if all present values are numbers, otherwise ``category``."""
    numbers = (
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in values
        if value is not None
    )
    return "number" if all(numbers) else "category"


def _sort_value(value: Any) -> float | str | None:
    """Return the value that the page sorts by."""
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    return None if value is None else format_value(value)


def _curve(index: int, split: str, points: Sequence[CurvePoint], columns: StepColumns) -> Tree:
    """Return the curve of a split of the run number *index*; its epochs or steps are added to *columns*."""
    steps = columns.setdefault(tuple(step for step, _ in points), len(columns))
    return {"run": index, "split": split, "x": steps, "y": _pack([value for _, value in points])}


def _matrix_data(cells: Sequence[Cell], classes: dict[tuple[Cell, ...], int]) -> Tree | None:
    """Return the confusion matrix *cells* of a run, None without cells; its classes are added to *classes*.

    The numbers of a cell are its count and, for a part of a matrix, the samples of its actual class.
    """
    index = classes.setdefault(tuple(cell[:2] for cell in cells), len(classes))
    numbers = [cell[2:] for cell in cells]
    return {"classes": index, "numbers": numbers} if numbers else None


def _sample_data(path: str, content: bytes) -> Tree:
    """Return a sample: the name of its file, and its text or its image in base64."""
    if path.endswith(".png"):
        return {"path": path, "image": base64.b64encode(content).decode()}
    return {"path": path, "text": content.decode("utf-8", errors="replace")}


def _epoch_curves(
    runs: Sequence[RunSummary], metrics: Collection[str], steps: StepColumns
) -> dict[str, list[Tree]]:
    charts: dict[str, list[Tree]] = {}
    for index, run in enumerate(runs):
        curves = [run.metrics[name] for name in metrics if name in run.metrics]
        epochs = select_epochs(curves)
        for curve in curves:
            points = [(epoch, curve.series.get(epoch, math.nan)) for epoch in epochs]
            charts.setdefault(curve.metric, []).append(_curve(index, curve.split, points, steps))
    return charts


def _batch_curves(
    index: int, plots: PlotData, metrics: Collection[str], steps: StepColumns
) -> Iterator[tuple[str, Tree]]:
    """Yield the title of the chart and the curve of each of *metrics* of the run number *index*."""
    for name in (name for name in metrics if name in plots.iterations):
        split, _, metric = name.partition("/")
        points = thin(plots.iterations[name], MAX_BATCHES)
        yield f"{metric}, {split}", _curve(index, split, points, steps)


def _charts(curves: dict[str, list[Tree]], x: str) -> list[Tree]:
    """Return a chart for each title in *curves*, except those without a finite number."""
    return [
        {
            "title": title,
            "x": x,
            "spec": empty_curves_spec({curve["split"] for curve in drawn}, x=x, title=title, color_of={}),
            "curves": drawn,
        }
        for title, drawn in sorted(curves.items())
        if any(curve["y"] for curve in drawn)
    ]


def _pack(values: Sequence[float]) -> str:
    """Return *values* as little-endian float32 in base64; an empty text if none is finite."""
    with np.errstate(over="ignore"):
        packed = np.asarray(values).astype("<f4")
    return base64.b64encode(packed.tobytes()).decode() if np.isfinite(packed).any() else ""
