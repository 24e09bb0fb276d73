"""Sequential access to the bytes of a record, with bounds checks.

Every decoder reads its bytes from a `ByteReader`, which never returns more bytes than exist and allocates no
memory for a declared length before it has checked that length.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.limits import Limits

Blob = NDArray[np.uint8]
"""Bytes in separate memory, which `memoryview` and torch share without copying."""


@dataclass(frozen=True)
class Skipped:
    """Placeholder for bytes that were not kept."""

    size: int


class ByteReader:
    """A stream of bytes with a known end: here an uncompressed file, or bytes in memory."""

    def __init__(self, file: BinaryIO, size: int, name: str, *, limit: int | None = None) -> None:
        self.name = name
        """Name of the file, for messages."""
        self.offset = 0
        """Number of bytes read."""
        self.limits = Limits.for_size(size, limit)
        """Limits on the memory and time spent on the file."""
        self._size = size
        self._file = file

    @classmethod
    def of_file(cls, path: Path, *, limit: int | None = None) -> "ByteReader":
        """Return a reader of the file *path*; *limit* raises the default `Limits`."""
        return cls(path.open("rb"), path.stat().st_size, str(path), limit=limit)

    @classmethod
    def of_bytes(cls, data: bytes, *, limit: int | None = None) -> "ByteReader":
        """Return a reader of *data*; *limit* raises the default `Limits`."""
        return cls(io.BytesIO(data), len(data), "the record in memory", limit=limit)

    def remaining(self) -> int:
        """Return the largest number of bytes that can follow; longer declared lengths are refused unread."""
        return self._size - self.offset

    def read(self, size: int) -> bytes:
        """Return the next *size* bytes, for headers and short values. Raises `RecordError` at the end."""
        check_available(self, size)
        data = self._file.read(size)
        self._advance(len(data), size)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next *size* bytes without reading them; fewer only at the end."""
        data = self._file.read(min(size, self.remaining()))
        self._file.seek(-len(data), 1)
        return data

    def read_array(self, size: int) -> Blob:
        """Return the next *size* bytes in memory of their own. Raises `RecordError` at the end."""
        check_available(self, size)
        data = np.empty(size, np.uint8)
        self._advance(self._file.readinto(data.data), size)  # type: ignore[attr-defined]  # missing in typeshed
        return data

    def skip(self, size: int) -> None:
        """Skip *size* bytes. Raises `RecordError` at the end."""
        check_available(self, size)
        self._file.seek(size, 1)
        self.offset += size

    def finish(self) -> None:
        """Raise `RecordError` unless the stream ends at this position and is intact."""
        if self.remaining():
            raise RecordError(f"{self.name} has {self.remaining()} surplus bytes after the end of the record")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _advance(self, count: int, size: int) -> None:
        self.offset += count
        if count != size:
            raise RecordError(f"{self.name}, offset {self.offset}: the file ended {size - count} bytes early")


def read_blob(source: ByteReader, size: int, *, keep_data: bool) -> Blob | None:
    """Return the next *size* bytes of *source*; without *keep_data*, skip them and return None."""
    if keep_data:
        return source.read_array(size)
    source.skip(size)
    return None


def check_available(source: ByteReader, size: int) -> None:
    """Raise `RecordError` unless *size* bytes can follow in *source*."""
    if not 0 <= size <= source.remaining():
        raise RecordError(
            f"{source.name}, offset {source.offset}: {size} bytes are declared, but "
            f"{source.remaining()} remain"
        )


def rechunk(pieces: Iterable[bytes | memoryview], size: int) -> Iterator[bytearray | memoryview]:
    """Yield the bytes of *pieces* in blocks of *size* bytes; the last one may be shorter.

    A block within a piece is a view of it, and any other block a copy.
    """
    block = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        while view:
            added = view[: size - len(block)]
            view = view[len(added) :]
            if len(added) == size:
                yield added
                continue
            block += added
            if len(block) == size:
                yield block
                block = bytearray()
    if block:
        yield block
