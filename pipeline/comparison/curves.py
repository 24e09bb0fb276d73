"""The curves and the confusion matrix of a run, read from the files that `dvc plots` shows."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from pipeline.comparison.runs import MetricCurve
from pipeline.revisions.files import RevisionFiles
from stages.contracts.confusion import select_cells
from stages.contracts.history import Direction, Split

MAX_POINTS = 1000
"""Points of a curve of batches. A longer curve is thinned: more points could not be distinguished."""
_PARTS = {
    Direction.LOWEST: ("loss", "error", "perplexity"),
    Direction.HIGHEST: (
        "accuracy",
        "auroc",
        "precision",
        "recall",
        "score",
        "bleu",
        "rouge",
        "dice",
        "ssim",
        "psnr",
    ),
}
"""Parts of the name of a metric that imply a direction, anywhere in the name."""
_WORDS = {
    Direction.LOWEST: {"mae", "mse", "rmse", "wer", "cer"},
    Direction.HIGHEST: {"auc", "f1", "map", "iou", "r2"},
}
"""Words that are too short for that, and must be separate words of the name."""
CurvePoint = tuple[int, float]
"""Epoch or step, and value."""
Cell = tuple[str | int, ...]
"""Actual class, predicted class and count; of a part of a matrix also the samples of the actual class."""


@dataclass(frozen=True)
class PlotData:
    """The data of the plots of one run, other than its epoch curves; empty if it is not cached."""

    iterations: Mapping[str, Sequence[CurvePoint]] = field(default_factory=dict)
    """By ``split/metric``, each step from 0 and its value."""
    confusion: Sequence[Cell] = ()


def read_epoch_curves(files: RevisionFiles) -> dict[str, MetricCurve]:
    """Return every metric with an epoch curve, by ``split/metric``; empty if the curves are not cached."""
    if "plots" not in files.paths:
        return {}
    found = {}
    for path in files.below(files.paths["plots"]):
        if path.parent == files.paths["plots"] and path.suffix == ".tsv":
            for each in _epoch_curves(path, files.read(path) or ""):
                found[each.name] = each
    return found


def read_plot_data(revisions: Mapping[str, RevisionFiles]) -> dict[str, PlotData]:
    """Return the plot data of each run in *revisions*, by its name."""
    return {name: _plot_data(files) for name, files in revisions.items()}


def direction_of(metric: str) -> Direction | None:
    """Return which values of *metric* are better, judged by its name, since no output records it.

    None if the name implies no direction, such as that of a learning rate.
    """
    name = metric.casefold()
    words = set(re.findall(r"[a-z0-9]+", name))
    for direction in (Direction.LOWEST, Direction.HIGHEST):
        if words & _WORDS[direction] or any(part in name for part in _PARTS[direction]):
            return direction
    return None


def thin(points: Sequence[CurvePoint], limit: int = MAX_POINTS) -> list[CurvePoint]:
    """Return at most *limit* of *points*: those whose step is a multiple of a power of two."""
    steps = set(thin_steps([step for step, _ in points], limit))
    return [point for point in points if point[0] in steps]


def thin_steps(steps: Sequence[int], limit: int) -> list[int]:
    """Return at most *limit* of *steps*: the multiples of a power of two, which all runs have in common."""
    stride, kept = 1, list(steps)
    while len(kept) > limit:
        stride *= 2
        kept = [step for step in kept if step % stride == 0]
    return kept


def parse_matrix(text: str) -> Sequence[Cell]:
    """Return the cells of a TSV to show.

    In a file of an older version the column ``predicted`` is called ``given``, and a large matrix may have
    all its cells.
    """
    table = _columns(text)
    predicted = table.get("predicted", table.get("given", ()))
    cells = list(zip(table.get("actual", ()), predicted, table.get("count", ()), strict=False))
    counted = [(*cell[:2], int(cell[2])) for cell in cells if cell[2].isdecimal()]
    samples = table.get("class_samples")
    if samples is None or len(counted) < len(cells) or not all(map(str.isdecimal, samples)):
        return select_cells(counted, len({name for cell in counted for name in cell[:2]}))
    return [(*cell, int(number)) for cell, number in zip(counted, samples, strict=True)]


def _epoch_curves(path: Path, text: str) -> Iterator[MetricCurve]:
    metric = _metric_of(path)
    table = _columns(text)
    epochs = [int(cell) if cell.isdecimal() else None for cell in table.get("epoch", ())]
    for split in Split:
        values = map(_number, table.get(split, ()))
        points = zip(epochs, values, strict=False)
        series = {epoch: value for epoch, value in points if epoch is not None and value is not None}
        if series:
            yield MetricCurve(split.value, metric, series, direction_of(metric))


def _plot_data(files: RevisionFiles) -> PlotData:
    paths = files.paths
    found = {}
    for split in Split if "iterations" in paths else ():
        for path in files.below(paths["iterations"] / split):
            points = list(_batch_points(files.read(path) or ""))
            if points:
                found[f"{split}/{_metric_of(path)}"] = thin(points)
    confusion = (paths.get("confusion") and files.read(paths["confusion"])) or ""
    return PlotData(found, parse_matrix(confusion))


def _batch_points(text: str) -> Iterator[CurvePoint]:
    table = _columns(text)
    for step, cell in zip(table.get("step", ()), table.get("value", ()), strict=False):
        value = _number(cell)
        if step.isdecimal() and value is not None:
            yield int(step), value


def _metric_of(path: Path) -> str:
    """Return the name of the metric whose values are in the file *path*."""
    return path.stem.replace("_", " ")


def _columns(text: str) -> dict[str, Sequence[str]]:
    """Return the columns of a TSV with a header, by name; a missing cell is empty."""
    header, *lines = [line.split("\t") for line in text.splitlines()] or [[]]
    return dict(zip(header, zip_longest(*lines, fillvalue=""), strict=False))


def _number(cell: str) -> float | None:
    """Return the number in *cell*; None if it is not a number."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None
