"""A confusion matrix in the form that `dvc plots` reads."""

from collections.abc import Iterable
from pathlib import Path

from stages.contracts.files import write_text


def write_confusion(cells: Iterable[tuple[int, int, int]], path: Path) -> None:
    """A row for each actual class, given class and how often that was; of a run with no classes, none."""
    rows = ("\t".join(map(str, cell)) for cell in cells)
    write_text(path, "\n".join(["actual\tgiven\tcount", *rows]) + "\n")
