"""What is drawn of a run beside its epoch curves: the value of every batch, and the confusion matrix."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.comparison.curves import columns, metric_of, number
from pipeline.comparison.source import Source
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


def drawn(found: Mapping[str, Source]) -> dict[str, Drawn]:
    """What is drawn of each run in *found*, by its name."""
    return {name: _drawn(source) for name, source in found.items()}


def thinned(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """At most *most* of *points*: those whose step is a multiple of a power of two."""
    steps = set(thinned_steps([step for step, _ in points], most))
    return [point for point in points if point[0] in steps]


def thinned_steps(steps: Sequence[int], most: int) -> list[int]:
    """At most *most* of *steps*: the multiples of a power of two, which are the same in all runs."""
    stride, kept = 1, list(steps)
    while len(kept) > most:
        stride *= 2
        kept = [step for step in kept if step % stride == 0]
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
    table = columns(text)
    for step, cell in zip(table.get("step", ()), table.get("value", ()), strict=False):
        value = number(cell)
        if step.isdecimal() and value is not None:
            yield int(step), value


def shown_matrix(text: str) -> Sequence[Cell]:
    """Return the cells to show of a TSV.

    In a file of an older version the column `predicted` is called ``given``, and a large matrix may have all
    its cells.
    """
    table = columns(text)
    predicted = table.get("predicted", table.get("given", ()))
    cells = list(zip(table.get("actual", ()), predicted, table.get("count", ()), strict=False))
    counted = [(*cell[:2], int(cell[2])) for cell in cells if cell[2].isdecimal()]
    samples = table.get("class_samples")
    if samples is None or len(counted) < len(cells) or not all(map(str.isdecimal, samples)):
        return shown_cells(counted, len({name for cell in counted for name in cell[:2]}))
    return [(*cell, int(number)) for cell, number in zip(counted, samples, strict=True)]
