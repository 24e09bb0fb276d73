"""A run's numbers in the forms that `dvc metrics`, `dvc plots` and `dvc exp show` read."""

from pathlib import Path
from typing import Any

from stages.contracts.files import write_text
from stages.contracts.history import Direction, History, Split
from stages.contracts.text import number, to_json
from stages.loggers.names import file_name


def write_metrics(history: History, path: Path) -> None:
    """The last epoch's values, and those of the epoch with the lowest validation loss, as JSON.

    NaN and infinity are texts, as JSON has no such numbers.
    """
    last, best = history.epochs, history.best(Split.VALID, "Loss", Direction.LOWEST)
    content: dict[str, Any] = {"epoch": last, **_values(history, last)}
    if best is not None:
        content["best"] = {"epoch": best, **_values(history, best)}
    write_text(path, to_json(content) + "\n")


def write_curves(history: History, directory: Path) -> None:
    """One TSV a metric in *directory*: a row an epoch, a column a split.

    Raises `BuilderError` for a metric whose name is no file's.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for metric in history.metrics():
        series = {split: history.series(split, metric) for split in Split}
        columns = [split for split in Split if series[split]]
        lines = ["\t".join(["epoch", *columns])]
        for epoch in sorted(set().union(*series.values())):
            cells = [series[split].get(epoch) for split in columns]
            lines.append("\t".join([str(epoch), *("" if c is None else number(c) for c in cells)]))
        write_text(directory / file_name(metric, "tsv"), "\n".join(lines) + "\n")


def _values(history: History, epoch: int) -> dict[str, dict[str, float]]:
    """Return split to metric to the value of *epoch*; metrics are in alphabetical order."""
    values = sorted(history.at(epoch), key=lambda value: value.metric)
    return {
        split.value: {value.metric: value.value for value in values if value.split is split}
        for split in Split
    }
