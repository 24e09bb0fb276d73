"""The files that `dvc metrics`, `dvc plots` and `dvc exp show` read: metrics, curves, confusion matrix.

The curves of each split have one TSV per metric with a row per batch. Steps count the batches of a split from
0 through all epochs. To limit the size of the file, a long run keeps fewer of the later steps: from step 1024
on every second, from 2048 on every fourth, and so on with each doubling, which are 6,100 rows of a million
steps. A row has the value of that batch alone. Whether a step is kept depends only on its number, so the file
of a short run is the beginning of that of a longer run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.contracts.errors import ParamsError
from stages.contracts.history import Direction, History, Split, format_file_name
from stages.contracts.text import number, parse_number, to_json
from stages.loggers.log_files import find_epoch_folders
from stages.system.files import open_atomic, remove, write_text

FULL_RESOLUTION_STEPS = 1024
"""The number of steps at the beginning of a run that all have a row."""
CONFUSION_COLUMNS = ("actual", "predicted", "count", "class_samples")
_ITERATIONS_HEADER = "step\tepoch\tvalue\n"


@dataclass(frozen=True)
class PlotPaths:
    """The paths of the plots."""

    plots: Path
    """A directory, which contains the other paths."""
    iterations: Path
    """A directory, for the curves with a row per batch."""
    confusion: Path
    """A file, for the confusion matrix."""

    def relocate(self, directory: Path) -> "PlotPaths":
        """Return the same paths with *directory* instead of ``plots``.

        Raises `ParamsError` if a path is not below ``plots``.
        """
        for name, path in vars(self).items():
            if not path.is_relative_to(self.plots):
                raise ParamsError(
                    f"dvc.yaml: paths.{name} must be below paths.plots, {str(self.plots)!r}, because "
                    f"they are one output; found {str(path)!r}. Move it there"
                )
        inner = (directory / path.relative_to(self.plots) for path in (self.iterations, self.confusion))
        return PlotPaths(directory, *inner)


def write_results(
    history: History, confusion: Sequence[tuple[int, ...]], directory: Path, paths: PlotPaths
) -> None:
    """Write ``metrics.json`` to the artifact directory *directory*, and replace all plots.

    A run without validation has a note instead of valid logs, because DVC warns about an empty output.
    """
    valid = directory / Split.VALID
    note = valid / "no-validation.txt"
    remove(note)  # of the same run with fewer epochs
    if not (valid.is_dir() and any(valid.iterdir())):
        write_text(note, "The run had no validation.\n")
    write_metrics(history, directory / "metrics.json")
    remove(paths.plots)
    write_plots(history, confusion, directory, paths)


def write_plots(history: History, confusion: Sequence[tuple[int, ...]], logs: Path, paths: PlotPaths) -> None:
    """Write the curves of *history*, those of every batch, and the cells *confusion* of a confusion matrix.

    The values of the batches are read from *logs*, an artifact directory. Raises `OSError` if a file cannot
    be read or written: DVC would record the plots without it.
    """
    write_curves(history, paths.plots)
    for split in Split:
        write_iterations(logs / split, paths.iterations / split)
    write_confusion(confusion, paths.confusion)


def write_metrics(history: History, path: Path) -> None:
    """Write the values of the last epoch, and those of the epoch with the lowest validation loss, as JSON.

    NaN and infinity, which JSON does not have, are strings.
    """
    last, best = history.epochs, history.best(Split.VALID, "Loss", Direction.LOWEST)
    content: dict[str, Any] = {"epoch": last, **_select_values(history, last)}
    if best is not None:
        content["best"] = {"epoch": best, **_select_values(history, best)}
    write_text(path, to_json(content) + "\n")


def write_curves(history: History, directory: Path) -> None:
    """Write one TSV per metric to *directory*, with one row per epoch and one column per split.

    Names with the same file are one metric, as in the logs: a step can log ``a b`` on one split and ``a_b``
    on the other. Raises `BuilderError` for a metric whose name cannot be a file name.
    """
    directory.mkdir(parents=True, exist_ok=True)
    curves: dict[str, dict[Split, dict[int, float]]] = {}
    for metric in history.metrics():
        by_split = curves.setdefault(format_file_name(metric, "tsv"), {split: {} for split in Split})
        for split in Split:
            by_split[split].update(history.series(split, metric))
    for name, series in curves.items():
        columns = [split for split in Split if series[split]]
        lines = ["\t".join(["epoch", *columns])]
        for epoch in sorted(set().union(*series.values())):
            cells = [series[split].get(epoch) for split in columns]
            lines.append("\t".join([str(epoch), *("" if c is None else number(c) for c in cells)]))
        write_text(directory / name, "\n".join(lines) + "\n")


def write_iterations(logs: Path, directory: Path) -> None:
    """Write ``<directory>/<Metric>.tsv`` from all ``<logs>/epoch-<n>/<Metric>.log``; text has no rows."""
    epochs = sorted(find_epoch_folders(logs).items())
    if epochs:
        directory.mkdir(parents=True, exist_ok=True)
    for name in sorted({path.stem for _, folder in epochs for path in folder.glob("*.log")}):
        files = [(epoch, folder / f"{name}.log") for epoch, folder in epochs]
        with open_atomic(directory / f"{name}.tsv") as file:
            file.write(_ITERATIONS_HEADER.encode())
            file.writelines(row.encode() for row in _iterate_rows(files))


def is_kept(step: int) -> bool:
    """Return whether *step*, counted from 0, has a row."""
    return step % (1 << (step // FULL_RESOLUTION_STEPS).bit_length()) == 0


def write_confusion(cells: Sequence[tuple[int, ...]], path: Path) -> None:
    """Write a row per cell: actual class, predicted class, count. Without cells, write only the header.

    If *cells* are a part of the matrix, they have a fourth column: the number of samples of the actual class.
    """
    columns = CONFUSION_COLUMNS[: len(cells[0]) if cells else 3]
    rows = ("\t".join(map(str, cell)) for cell in cells)
    write_text(path, "\n".join(["\t".join(columns), *rows]) + "\n")


def _select_values(history: History, epoch: int) -> dict[str, dict[str, float]]:
    """Return split to metric to the value of *epoch*, with the metrics in alphabetical order."""
    values = sorted(history.at(epoch), key=lambda value: value.metric)
    return {
        split.value: {value.metric: value.value for value in values if value.split is split}
        for split in Split
    }


def _iterate_rows(files: list[tuple[int, Path]]) -> Iterator[str]:
    step = 0
    for epoch, path in files:
        for value in _iterate_values(path):
            if is_kept(step) and parse_number(value) is not None:
                yield f"{step}\t{epoch}\t{value}\n"
            step += 1


def _iterate_values(path: Path) -> Iterator[str]:
    """Yield the value of each batch as text; yield none if the log does not exist."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            value, _, count = line.rstrip("\n").partition(",")
            if value and count != "final":
                yield value
