"""What is drawn of a run beside its epoch curves: the value of every batch, and the confusion matrix."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.compared.curves import metric_of, number, rows
from pipeline.compared.gathering import opened
from pipeline.compared.runs import Comparison
from pipeline.compared.source import Source
from stages.contracts.confusion import shown_cells
from stages.contracts.history import Split

MOST = 1000
"""Points of a curve of batches; a longer one is thinned, as more could not be told apart."""
Point = tuple[int, float]
Cell = tuple[str | int, ...]
"""Actual class, predicted class and count; of a part of a matrix also the samples of the actual class."""


@dataclass(frozen=True)
class Drawn:
    """What is drawn of one run; empty where the cache has nothing."""

    iterations: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """By ``split/metric``, the step from 0 and the value there."""
    confusion: Sequence[Cell] = ()


def drawn(comparison: Comparison) -> dict[str, Drawn]:
    """What is drawn of each run, by its name."""
    with opened() as repo:
        return {run.name: _drawn(Source(repo, run.sha)) for run in comparison.runs}


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most `MOST` of *points*: those whose step is a multiple of a power of two."""
    stride, kept = 1, list(points)
    while len(kept) > MOST:
        stride *= 2
        kept = [point for point in kept if point[0] % stride == 0]
    return kept


def _drawn(source: Source) -> Drawn:
    paths = source.paths
    found = {}
    for split in Split if "iterations" in paths else ():
        for path in source.below(paths["iterations"] / split):
            points = list(_points(source.read(path) or ""))
            if points:
                found[f"{split}/{metric_of(path)}"] = thinned(points)
    confusion = (paths.get("confusion") and source.read(paths["confusion"])) or ""
    return Drawn(found, shown_matrix(confusion))


def _points(text: str) -> Iterator[Point]:
    for row in rows(text):
        step, value = row.get("step", ""), number(row.get("value"))
        if step.isdecimal() and value is not None:
            yield int(step), value


def shown_matrix(text: str) -> Sequence[Cell]:
    """Return the cells to show of a TSV; one of an older version may have all those of a large matrix."""
    table = [row for row in rows(text) if row.get("count", "").isdecimal()]
    if table and all(row.get("class_samples", "").isdecimal() for row in table):
        return [(*_cell(row), int(row["class_samples"])) for row in table]
    cells = [_cell(row) for row in table]
    return shown_cells(cells, len({name for cell in cells for name in cell[:2]}))


def _cell(row: Mapping[str, str]) -> tuple[str, str, int]:
    return row.get("actual", ""), row.get("given", ""), int(row["count"])
