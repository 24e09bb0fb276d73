"""Sequential access to the bytes of a record, with bounds checks.

Every decoder reads its bytes from a `ByteReader`, which never returns more bytes than exist and allocates no
memory for a declared length before it has checked that length.
"""

import io
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.limits import Limits

Blob = NDArray[np.uint8]
"""Bytes in memory of their own, which `memoryview` and torch share without copying."""


class ByteReader(Protocol):
    """A stream of bytes whose end is known."""

    name: str
    """Of the file, for messages."""
    offset: int
    """Bytes taken so far."""
    limits: Limits
    """What the file may ask for."""

    def remaining(self) -> int:
        """How many bytes there can be at most from here: what is declared longer is refused unread."""

    def read(self, size: int) -> bytes:
        """The next *size* bytes, for headers and short values. Raises `RecordError` where there are fewer."""

    def read_array(self, size: int) -> Blob:
        """The next *size* bytes in memory of their own. Raises `RecordError` where there are fewer."""

    def skip(self, size: int) -> None:
        """Go past *size* bytes without keeping them. Raises `RecordError` where there are fewer."""

    def finish(self) -> None:
        """Raises `RecordError` unless the stream ends here, whole."""

    def close(self) -> None:
        """Let the file go."""


class PlainReader:
    """A file, or bytes in memory, that is not compressed."""

    def __init__(self, file: BinaryIO, size: int, name: str, *, limit: int | None = None) -> None:
        self.name = name
        self.offset = 0
        self.limits = Limits.for_size(size, limit)
        self._size = size
        self._file = file

    @classmethod
    def of_file(cls, path: Path, *, limit: int | None = None) -> "PlainReader":
        """Return the content of *path*; *limit* raises the default `Limits`."""
        return cls(path.open("rb"), path.stat().st_size, str(path), limit=limit)

    @classmethod
    def of_bytes(cls, data: bytes, *, limit: int | None = None) -> "PlainReader":
        """Return *data* as a source; *limit* raises the default `Limits`."""
        return cls(io.BytesIO(data), len(data), "the record in memory", limit=limit)

    def remaining(self) -> int:
        """Bytes to the end."""
        return self._size - self.offset

    def read(self, size: int) -> bytes:
        """The next *size* bytes."""
        self._need(size)
        data = self._file.read(size)
        self._count(len(data), size)
        return data

    def read_array(self, size: int) -> Blob:
        """The next *size* bytes in memory of their own."""
        self._need(size)
        data = np.empty(size, np.uint8)
        self._count(self._file.readinto(data.data), size)  # type: ignore[attr-defined]  # typeshed lacks it
        return data

    def skip(self, size: int) -> None:
        """Go past *size* bytes."""
        self._need(size)
        self._file.seek(size, 1)
        self.offset += size

    def finish(self) -> None:
        """Raises `RecordError` where bytes are left."""
        if self.remaining():
            raise RecordError(f"{self.name} goes on for {self.remaining()} bytes after its end")

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _need(self, size: int) -> None:
        if not 0 <= size <= self.remaining():
            raise RecordError(
                f"{self.name}, offset {self.offset}: {size} bytes are declared, {self.remaining()} are left"
            )

    def _count(self, got: int, size: int) -> None:
        self.offset += got
        if got != size:
            raise RecordError(f"{self.name}, offset {self.offset}: the file ended {size - got} bytes early")
