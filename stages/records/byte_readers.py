"""Sequential access to the bytes of a record, with bounds checks.

Every decoder reads its bytes from a `ByteReader`, which never returns more bytes than exist and allocates no
memory for a declared length before it has checked that length.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.limits import Limits

Blob = NDArray[np.uint8]
"""Bytes in separate memory, which `memoryview` and torch share without copying."""
WINDOW = 1 << 16
"""Bytes that are read ahead for headers and short values."""


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
        self._window = memoryview(b"")

    @classmethod
    def of_file(cls, path: Path, *, limit: int | None = None) -> Self:
        """Return a reader of the file *path*; *limit* raises the default `Limits`."""
        return cls(path.open("rb", buffering=0), path.stat().st_size, str(path), limit=limit)

    @classmethod
    def of_bytes(cls, data: bytes, *, limit: int | None = None) -> Self:
        """Return a reader of *data*; *limit* raises the default `Limits`."""
        return cls(io.BytesIO(data), len(data), "the record in memory", limit=limit)

    def remaining(self) -> int:
        """Return the largest number of bytes that can follow; longer declared lengths are refused unread."""
        return self._size - self.offset

    def read(self, size: int) -> bytes:
        """Return the next *size* bytes, for headers and short values. Raises `RecordError` at the end."""
        if not 0 <= size <= self._window.nbytes:
            check_available(self, size)
            if size > WINDOW:
                return self.read_array(size).tobytes()
            self._fill_window(size)
        data = bytes(self._window[:size])
        self._window = self._window[size:]
        self.offset += size
        return data

    def peek(self, size: int) -> bytes:
        """Return the next *size* bytes, at most `WINDOW`, without reading them; fewer only at the end."""
        size = min(size, self.remaining())
        if size > self._window.nbytes:
            self._fill_window(size)
        return bytes(self._window[:size])

    def read_array(self, size: int) -> Blob:
        """Return the next *size* bytes in memory of their own. Raises `RecordError` at the end."""
        check_available(self, size)
        try:
            data = np.empty(size, np.uint8)
        except MemoryError as error:
            raise RecordError(
                f"{self.name} declares {size} bytes in one value, which do not fit into memory"
            ) from error
        filled = min(self._window.nbytes, size)
        data.data[:filled] = self._window[:filled]
        self._window = self._window[filled:]
        while filled < size:
            filled += self._read_into(data.data[filled:])
        self.offset += size
        return data

    def skip(self, size: int) -> None:
        """Skip *size* bytes. Raises `RecordError` at the end."""
        check_available(self, size)
        self._file.seek(max(size - self._window.nbytes, 0), 1)
        self._window = self._window[size:]
        self.offset += size

    def finish(self) -> None:
        """Raise `RecordError` unless the stream ends at this position and is intact."""
        if self.remaining():
            raise RecordError(f"{self.name} has {self.remaining()} surplus bytes after the end of the record")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fill_window(self, size: int) -> None:
        """Read until the window has at least *size* bytes, which were checked to be available."""
        content = memoryview(bytearray(min(WINDOW, self.remaining())))
        filled = self._window.nbytes
        content[:filled] = self._window
        while filled < size:
            filled += self._read_into(content[filled:])
        self._window = content[:filled]

    def _read_into(self, target: memoryview) -> int:
        """Read at least 1 byte to the beginning of *target*, and return their number."""
        count: int = self._file.readinto(target)  # type: ignore[attr-defined]  # missing in typeshed
        if not count:
            raise RecordError(f"{self.name}: the file ended {len(target)} bytes early")
        return count


def read_blob(source: ByteReader, size: int, *, keep_data: bool) -> Blob | Skipped:
    """Return the next *size* bytes of *source*; without *keep_data*, skip them."""
    if keep_data:
        return source.read_array(size)
    source.skip(size)
    return Skipped(size)


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
