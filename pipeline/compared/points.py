"""What is drawn of a run beside its epoch curves: the value of every batch, and the confusion matrix."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.compared.curves import columns, metric_of, number
from pipeline.compared.source import Source
from stages.contracts.history import Split

MOST = 1000
"""Points of a curve of batches; a longer one is thinned, as more could not be told apart."""
Point = tuple[int, float]
Cell = tuple[str, str, int]
"""Actual class, given class, and how often."""


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
    return Drawn(found, tuple(_cells(source)))


def _points(text: str) -> Iterator[Point]:
    table = columns(text)
    for step, cell in zip(table.get("step", ()), table.get("value", ()), strict=False):
        value = number(cell)
        if step.isdecimal() and value is not None:
            yield int(step), value


def _cells(source: Source) -> Iterator[Cell]:
    path = source.paths.get("confusion")
    table = columns((path and source.read(path)) or "")
    counts = table.get("count", ())
    blank = [""] * len(counts)
    for actual, given, count in zip(
        table.get("actual", blank), table.get("given", blank), counts, strict=False
    ):
        if count.isdecimal():
            yield actual, given, int(count)
