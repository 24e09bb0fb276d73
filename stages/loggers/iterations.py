"""The log of every batch as the curves that `dvc plots` shows: one TSV a metric, with a row a batch.

Steps count the batches of a split from 0 through all epochs. A long run keeps fewer of the later ones, so
that a file stays small: of the steps from 1024 on every second, from 2048 on every fourth, and so on with
each doubling. That makes 6,100 rows of a million steps. Each is what that one batch came to, and whether a
step is kept depends on its number alone, so a shorter run has the beginning of a longer one.
"""

from collections.abc import Iterator
from pathlib import Path

from stages.contracts.files import open_atomic
from stages.loggers.reading import epoch_folders

ALL_UP_TO = 1024
_HEADER = "step\tepoch\tvalue\n"


def is_kept(step: int) -> bool:
    """Whether *step*, from 0, has a row."""
    return step % (1 << (step // ALL_UP_TO).bit_length()) == 0


def write_iterations(logs: Path, directory: Path) -> None:
    """``<directory>/<Metric>.tsv`` of every ``<logs>/epoch-<n>/<Metric>.log``; text has no rows."""
    epochs = sorted(epoch_folders(logs).items())
    directory.mkdir(parents=True, exist_ok=True)
    for name in sorted({path.stem for _, folder in epochs for path in folder.glob("*.log")}):
        files = [(epoch, folder / f"{name}.log") for epoch, folder in epochs]
        with open_atomic(directory / f"{name}.tsv") as file:
            file.write(_HEADER.encode())
            file.writelines(row.encode() for row in _rows(files))


def _rows(files: list[tuple[int, Path]]) -> Iterator[str]:
    step = 0
    for epoch, path in files:
        for value in _values(path):
            if is_kept(step) and _is_number(value):
                yield f"{step}\t{epoch}\t{value}\n"
            step += 1


def _values(path: Path) -> Iterator[str]:
    """What each batch came to, as it is written; nothing where there is no such log."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            value, _, count = line.rstrip("\n").partition(",")
            if value and count != "final":
                yield value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
