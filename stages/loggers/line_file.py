"""A text file with buffered lines, without a timer or a thread."""

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Literal


class LineFile:
    """A text file that is written about once per *flush_seconds*, in the calling thread.

    Buffered lines are written by the first `write` after that time, or by `flush`. If the disk is full, the
    bytes that do not fit stay in the buffer and are written once there is space.
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
        """Add *line*, which must end in a line break."""
        self._lines.append(line)
        if monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Pass all buffered lines to the operating system."""
        lines, self._lines = self._lines, []
        self._bytes += "".join(lines).encode("utf-8", "backslashreplace")
        while self._bytes:
            self._synced = False
            del self._bytes[: self._file.write(self._bytes)]
        self._due = monotonic() + self._seconds

    def sync(self) -> int:
        """Sync all lines to disk and return the size of the file in bytes."""
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

    def discard_buffer(self) -> None:
        """Discard the buffered lines; for a forked process, whose parent writes them."""
        self._lines = []
        self._bytes.clear()

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()
