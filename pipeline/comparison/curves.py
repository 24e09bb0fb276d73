"""A revision's epoch curves, from the files that `dvc plots` shows."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from pipeline.comparison.directions import direction_of
from pipeline.comparison.runs import Measured
from pipeline.comparison.source import Source
from stages.contracts.history import Split


def measured(source: Source) -> dict[str, Measured]:
    """Every metric with an epoch curve, by ``split/metric``; nothing where the cache has none."""
    if "plots" not in source.paths:
        return {}
    found = {}
    for path in source.below(source.paths["plots"]):
        if path.parent == source.paths["plots"] and path.suffix == ".tsv":
            for each in _curves(path, source.read(path) or ""):
                found[each.name] = each
    return found


def metric_of(path: Path) -> str:
    """The name of the metric whose file *path* is."""
    return path.stem.replace("_", " ")


def columns(text: str) -> dict[str, Sequence[str]]:
    """The columns of a TSV with a header, by their names; a missing cell is empty."""
    header, *lines = [line.split("\t") for line in text.splitlines()] or [[]]
    return dict(zip(header, zip_longest(*lines, fillvalue=""), strict=False))


def number(cell: str) -> float | None:
    """The number in *cell*; None if it is not a number."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _curves(path: Path, text: str) -> Iterator[Measured]:
    metric = metric_of(path)
    table = columns(text)
    epochs = [int(cell) if cell.isdecimal() else None for cell in table.get("epoch", ())]
    for split in Split:
        values = map(number, table.get(split, ()))
        points = zip(epochs, values, strict=False)
        series = {epoch: value for epoch, value in points if epoch is not None and value is not None}
        if series:
            yield Measured(split.value, metric, series, direction_of(metric))
