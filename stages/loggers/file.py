"""Burn's log files: ``<directory>/epoch-<n>/<Metric>.log``, one ``value,count`` line a batch.

The form is that of Burn 0.13 to 0.21. Names keep everything but spaces, which become ``_``.
"""

import re
from pathlib import Path
from typing import TextIO

from stages.contracts.errors import DataError
from stages.contracts.history import History, Split, Value
from stages.contracts.text import number


class FileMetricLogger:
    """Logs one split. A file is begun anew when its epoch begins, and buffered until it ends."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._epoch = 0
        self._files: dict[str, TextIO] = {}

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Add a line for one batch of *count* samples."""
        if epoch != self._epoch:
            self.close()
            self._epoch = epoch
        file = self._files.get(name) or self._opened(name)
        file.write(f"{number(value)},{count}\n")

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Flush and close; logging goes on with the next epoch."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _opened(self, name: str) -> TextIO:
        directory = self.directory / f"epoch-{self._epoch}"
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / f"{name.replace(' ', '_')}.log").open("w", encoding="utf-8", newline="\n")
        self._files[name] = file
        return file


def read_history(directory: Path) -> History:
    """What the logs under ``<directory>/train`` and ``<directory>/valid`` come to, epoch by epoch.

    Raises `DataError` for a line that is neither ``value`` nor ``value,count``.
    """
    history = History()
    for split in Split:
        for epoch, folder in _epochs(directory / split):
            for path in sorted(folder.glob("*.log")):
                mean = _mean(path)
                if mean is not None:
                    history.add(Value(epoch, split, path.stem.replace("_", " "), mean))
    return history


def _epochs(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    found = ((re.fullmatch(r"epoch-(\d+)", path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def _mean(path: Path) -> float | None:
    total, weight = 0.0, 0
    for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        value, _, count = line.partition(",")
        try:
            weighed = int(count or 1)
            total += float(value) * weighed
        except ValueError:
            raise DataError(f"{path}, line {place}: {line!r} is not 'value' or 'value,count'") from None
        weight += weighed
    return total / weight if weight else None
