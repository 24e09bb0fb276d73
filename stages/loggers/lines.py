"""Lines on their way to a file: kept, and handed over together once some time has passed."""

from pathlib import Path
from time import monotonic
from typing import Literal


class LineFile:
    """A text file that is written about once in *flush_seconds*, in the thread that calls.

    There is no timer: what was kept since the last line goes with the next one, or with `flush`.
    """

    def __init__(self, path: Path, mode: Literal["a", "w"], flush_seconds: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open(mode, encoding="utf-8", errors="backslashreplace", newline="\n")
        self._lines: list[str] = []
        self._seconds = flush_seconds
        self._due = monotonic() + flush_seconds

    def write(self, line: str) -> None:
        """Take in *line*, which ends in a line break."""
        self._lines.append(line)
        if monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        lines, self._lines = self._lines, []
        self._file.write("".join(lines))
        self._file.flush()
        self._due = monotonic() + self._seconds

    def forget(self) -> None:
        """Drop what is kept: in a forked process, where it is the parent's to write."""
        self._lines = []

    def close(self) -> None:
        """Flush, and write no more."""
        self.flush()
        self._file.close()
