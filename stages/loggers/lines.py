"""Lines on their way to a file: kept, and handed over together once some time has passed."""

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Literal


class LineFile:
    """A text file that is written about once in *flush_seconds*, in the thread that calls.

    There is no timer: what was kept since the last line goes with the next one, or with `flush`. Where the
    disk is full, what did not fit is kept, and written once there is space.
    """

    def __init__(self, path: Path, mode: Literal["a", "w"], flush_seconds: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab" if mode == "a" else "wb", buffering=0)
        self._lines: list[str] = []
        self._bytes = bytearray()
        self._synced = False
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
        self._bytes += "".join(lines).encode("utf-8", "backslashreplace")
        while self._bytes:
            self._synced = False
            del self._bytes[: self._file.write(self._bytes)]
        self._due = monotonic() + self._seconds

    def sync(self) -> int:
        """Everything is on disk when this returns: the file's size in bytes."""
        self.flush()
        if not self._synced:
            os.fsync(self._file.fileno())
            self._synced = True
        return os.fstat(self._file.fileno()).st_size

    def is_removed(self) -> bool:
        """Return whether the file is no longer at its path."""
        with suppress(FileNotFoundError):
            return not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        return True

    def forget(self) -> None:
        """Drop what is kept: in a forked process, where it is the parent's to write."""
        self._lines = []
        self._bytes.clear()

    def close(self) -> None:
        """Flush, and write no more."""
        try:
            self.flush()
        finally:
            self._file.close()
