"""A comparison as one HTML page that contains all it needs, makes no request and works offline.

Names and params are data that the page only displays as text. The only scripts that run are the two that it
is built with. Curves and confusion matrices are stored as columns of numbers, so that many runs make a small
page.
"""

import base64
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from pipeline import plot_images
from pipeline.comparison.collection import Cell, PlotData, thin, thin_steps
from pipeline.comparison.plots import assign_colors, empty_confusion_spec, empty_curves_spec
from pipeline.comparison.runs import (
    Comparison,
    MetricCurve,
    RunSummary,
    ViewOptions,
    select_metrics,
    sort_runs,
)
from pipeline.comparison.tables import ABSENT, TableColumn, columns, format_value
from stages.contracts.history import Direction

MAX_EPOCHS = 256
"""Epochs of a run on the page, in addition to those with an extreme value."""
MAX_BATCHES = 256
"""Points of a curve of batches on the page."""
DIGITS = 6
"""Significant digits of a value: a chart is a few hundred pixels high."""
Tree = dict[str, Any]


def build_page(comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions) -> str:
    """Return the page. Raises `StageError` if the extra ``page`` is not installed."""
    parts = files("pipeline.comparison") / "web"
    scripts = {
        "vega": _without_end_tags(plot_images.vega_script()),
        "js": (parts / "page.js").read_text("utf-8"),
    }
    contents = {
        **scripts,
        "css": (parts / "page.css").read_text("utf-8"),
        "data": _json(_data(comparison, plot_data, view)),
        "hashes": " ".join(map(_hash, scripts.values())),
    }
    text = (parts / "page.html").read_text("utf-8")
    before, *rest = text.split("{")  # one pass, so that inserted contents are not searched again
    pieces = (each.partition("}") for each in rest)
    return before + "".join(contents[name] + after for name, _, after in pieces)


def select_epochs(curves: Sequence[MetricCurve]) -> list[int]:
    """Return the epochs of one run for the page: at most `MAX_EPOCHS`, and the extremes of each curve.

    Extremes are the first and the last epoch, and those with the lowest, the highest and the best value.
    """
    kept = set(thin_steps(sorted(set().union(*(each.series for each in curves))), MAX_EPOCHS))
    for each in curves:
        finite = {epoch: value for epoch, value in each.series.items() if math.isfinite(value)}
        if finite:
            kept |= {
                min(finite),
                max(finite),
                min(finite, key=finite.__getitem__),
                max(finite, key=finite.__getitem__),
            }
        if each.best_epoch is not None:
            kept.add(each.best_epoch)
    return sorted(kept)


class _StepColumns:
    """The epochs and steps of all curves; a column that several curves have is stored once."""

    def __init__(self) -> None:
        self._indices: dict[tuple[int, ...], int] = {}

    def index(self, steps: Iterable[int]) -> int:
        """Return the index of the column *steps* in `columns`."""
        return self._indices.setdefault(tuple(steps), len(self._indices))

    @property
    def columns(self) -> list[tuple[int, ...]]:
        """All columns."""
        return list(self._indices)


def _data(comparison: Comparison, plot_data: Mapping[str, PlotData], view: ViewOptions) -> Tree:
    """Return the data of the page: columns with a value for each run, in the order of ``runs``."""
    runs = sort_runs(comparison, view)
    metrics = select_metrics(comparison, view.metrics or comparison.metrics)
    color_of = assign_colors([run.name for run in comparison.runs])
    data_of_runs = [plot_data.get(run.name, PlotData()) for run in runs]
    return {
        "summary": _summary(comparison),
        "first": comparison.runs[0].name,
        "runs": [
            {"name": run.name, "sha": run.sha, "colour": color_of[run.name], "notes": list(run.notes)}
            for run in runs
        ],
        "columns": [_column(comparison, column, runs) for column in columns(comparison, view)],
        "params": _params(runs),
        **_curves_data(runs, data_of_runs, metrics),
        "confusion": _confusion_data(data_of_runs),
    }


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
    values = [column.value(run) for run in runs]
    best = _best(comparison, column.key, values)
    return {
        "title": column.title,
        "key": column.key,
        "numeric": column.numeric,
        "shown": [ABSENT if value is None else column.text(value) for value in values],
        "order": [_sort_value(value) for value in values],
        "best": [place for place, value in enumerate(values) if value is not None and value == best],
    }


def _best(comparison: Comparison, key: str, values: list[Any]) -> Any:
    """Return the best value of a column with best values; None if fewer than two runs have one."""
    name = key.removesuffix(" best")
    better = next((run.metrics[name].better for run in comparison.runs if name in run.metrics), None)
    present = [value for value in values if value is not None]
    if name == key or better is None or len(present) < 2:
        return None
    return min(present) if better is Direction.LOWEST else max(present)


def _sort_value(value: Any) -> float | str | None:
    """Return the value that the page sorts by."""
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    return None if value is None else format_value(value)


def _curves_data(runs: Sequence[RunSummary], data: Sequence[PlotData], metrics: Collection[str]) -> Tree:
    """Return the charts of *metrics*, and the columns of steps that their curves refer to."""
    steps = _StepColumns()
    charts = {
        "epochs": _charts(_epoch_curves(runs, metrics, steps), "epoch"),
        "iterations": _charts(_batch_curves(data, metrics, steps), "step"),
    }
    return {"charts": charts, "steps": steps.columns}


def _confusion_data(data: Sequence[PlotData]) -> Tree | None:
    """Return the confusion matrix of each run, None for a run without; None if no run has one.

    The numbers of a cell are its count and, for a part of a matrix, the samples of its actual class.
    """
    if not any(each.confusion for each in data):
        return None
    classes: dict[tuple[Cell, ...], int] = {}
    runs = []
    for each in data:
        index = classes.setdefault(tuple(cell[:2] for cell in each.confusion), len(classes))
        numbers = [cell[2:] for cell in each.confusion]
        runs.append({"classes": index, "numbers": numbers} if numbers else None)
    return {"spec": empty_confusion_spec(), "runs": runs, "classes": list(classes)}


def _epoch_curves(
    runs: Sequence[RunSummary], metrics: Collection[str], steps: _StepColumns
) -> dict[str, list[Tree]]:
    charts: dict[str, list[Tree]] = {}
    for index, run in enumerate(runs):
        curves = [run.metrics[name] for name in metrics if name in run.metrics]
        epochs = select_epochs(curves)
        for each in curves:
            values = [_round(each.series.get(epoch)) for epoch in epochs]
            curve = {"run": index, "split": each.split, "x": steps.index(epochs), "y": values}
            charts.setdefault(each.metric, []).append(curve)
    return charts


def _batch_curves(
    data: Sequence[PlotData], metrics: Collection[str], steps: _StepColumns
) -> dict[str, list[Tree]]:
    charts: dict[str, list[Tree]] = {}
    for index, run in enumerate(data):
        for name in (name for name in metrics if name in run.iterations):
            split, _, metric = name.partition("/")
            points = thin(run.iterations[name], MAX_BATCHES)
            values = [_round(value) for _, value in points]
            curve = {"run": index, "split": split, "x": steps.index(step for step, _ in points), "y": values}
            charts.setdefault(f"{metric}, {split}", []).append(curve)
    return charts


def _charts(curves: dict[str, list[Tree]], x: str) -> list[Tree]:
    """Return a chart for each title in *curves*, except those without a finite number."""
    return [
        {
            "title": title,
            "x": x,
            "spec": empty_curves_spec({each["split"] for each in found}, x=x, title=title, color_of={}),
            "curves": found,
        }
        for title, found in sorted(curves.items())
        if any(value is not None for each in found for value in each["y"])
    ]


def _round(value: float | None) -> float | None:
    """Return *value* with `DIGITS` digits; None if it cannot be drawn."""
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None


def _json(data: Tree) -> str:
    """Return *data* as JSON in which no text can end the script element around it."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _without_end_tags(script: str) -> str:
    r"""Return *script* without text that would end its element; ``<\/`` means the same in JavaScript."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
