"""A confusion matrix in the form that `dvc plots` reads."""

from collections.abc import Sequence
from pathlib import Path

from stages.contracts.files import write_text

COLUMNS = ("actual", "predicted", "count", "class_samples")


def write_confusion(cells: Sequence[tuple[int, ...]], path: Path) -> None:
    """Write a row for each of *cells*: actual class, predicted class, count; only a header without any.

    Cells that are not the whole matrix have a fourth column, the number of samples of the actual class.
    """
    columns = COLUMNS[: len(cells[0]) if cells else 3]
    rows = ("\t".join(map(str, cell)) for cell in cells)
    write_text(path, "\n".join(["\t".join(columns), *rows]) + "\n")
