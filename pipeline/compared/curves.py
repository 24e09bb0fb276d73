"""A revision's epoch curves, from the files that `dvc plots` shows."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.compared.directions import direction_of
from pipeline.compared.runs import Measured
from pipeline.compared.source import Source
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


def rows(text: str) -> list[dict[str, str]]:
    """The rows of a TSV with a header."""
    header, *lines = [line.split("\t") for line in text.splitlines()] or [[]]
    return [dict(zip(header, line, strict=False)) for line in lines]


def number(cell: str | None) -> float | None:
    """The number in *cell*; None where it is none."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _curves(path: Path, text: str) -> Iterator[Measured]:
    metric = metric_of(path)
    table = rows(text)
    for split in Split:
        series = dict(_points(table, split))
        if series:
            yield Measured(split.value, metric, series, direction_of(metric))


def _points(table: Sequence[Mapping[str, str]], split: str) -> Iterator[tuple[int, float]]:
    for row in table:
        epoch, value = row.get("epoch", ""), number(row.get(split))
        if epoch.isdecimal() and value is not None:
            yield int(epoch), value
