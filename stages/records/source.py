"""Sources of a reader's bytes, and the limits of what a file of unknown origin may ask for.

Every reader of a format takes its bytes from a `Source`: never more than exist, and no memory before their
number is known. Writers use the same limits, so a recorder reads whatever it wrote.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError

Blob = NDArray[np.uint8]
"""Bytes in memory of their own, which `memoryview` and torch share without copying."""


LEAST_LIMIT, LIMIT_RATIO = 64 * 2**20, 100
"""Bytes of content that any gzip file may have, and how many times its size the content of a larger one."""
LARGEST_RATIO = 1032
"""Bytes of content that one byte of deflate can stand for, at most."""
TRAINER_LIMIT = 1 << 30
"""The limit for a ``trainer-N``, whose history grows with every epoch and metric."""
LEAST_VALUES = 1 << 17
"""Small values that any file may have; one for each of its bytes, as it lies on disk, is added."""
LEAST_NUMBERS = 1 << 18
"""Numbers in lists that are not tensors, of which each takes ten times its bytes in the file."""
LEAST_MEMORY = 48 * 2**20
"""Bytes of memory that the small values of any file may take; twice the length of its content is added."""
ADVICE = "if you trust the file, give a higher limit: --limit, or limit= in Python"
_BYTES_PER_VALUE = 256


@dataclass(frozen=True)
class Limits:
    """The most that a file may ask a reader for."""

    content: int
    """Bytes after gzip."""
    values: int
    """Maps, lists, texts, numbers and constants, which take time and memory far beyond their bytes."""
    numbers: int
    """Numbers in lists that are not tensors."""
    memory: int
    """Bytes for small values, to which a reader adds twice the length of the content."""

    @classmethod
    def of(cls, size: int, limit: int | None = None) -> "Limits":
        """Return the limits of a file of *size* bytes on disk, raised to *limit* bytes of content."""
        raised = limit or 0
        values = raised // _BYTES_PER_VALUE
        return cls(
            content=max(LEAST_LIMIT, LIMIT_RATIO * size, raised),
            values=max(LEAST_VALUES + size, values),
            numbers=max(LEAST_NUMBERS, values),
            memory=max(LEAST_MEMORY, raised),
        )


def verified_limit(size: int) -> int:
    """Return the limit for a file of *size* bytes with a verified hash: as much as gzip can hold."""
    return LARGEST_RATIO * size


def least_size(content: int, values: int) -> int:
    """Return the least size of a gzip file of *content* bytes and *values* values that `Limits` admit."""
    by_content = -(-content // LIMIT_RATIO) if content > LEAST_LIMIT else 0
    return max(by_content, values - LEAST_VALUES)


class Source(Protocol):
    """A stream of bytes whose end is known."""

    name: str
    """Of the file, for messages."""
    offset: int
    """Bytes taken so far."""
    limits: Limits
    """What the file may ask for."""

    def remaining(self) -> int:
        """How many bytes there can be at most from here: what is declared longer is refused unread."""

    def take(self, size: int) -> bytes:
        """The next *size* bytes, for headers and short values. Raises `RecordError` where there are fewer."""

    def blob(self, size: int) -> Blob:
        """The next *size* bytes in memory of their own. Raises `RecordError` where there are fewer."""

    def skip(self, size: int) -> None:
        """Go past *size* bytes without keeping them. Raises `RecordError` where there are fewer."""

    def finish(self) -> None:
        """Raises `RecordError` unless the stream ends here, whole."""

    def close(self) -> None:
        """Let the file go."""


class PlainSource:
    """A file, or bytes in memory, that is not compressed."""

    def __init__(self, file: BinaryIO, size: int, name: str, *, limit: int | None = None) -> None:
        self.name = name
        self.offset = 0
        self.limits = Limits.of(size, limit)
        self._size = size
        self._file = file

    @classmethod
    def of_file(cls, path: Path, *, limit: int | None = None) -> "PlainSource":
        """Return the content of *path*; *limit* raises the default `Limits`."""
        return cls(path.open("rb"), path.stat().st_size, str(path), limit=limit)

    @classmethod
    def of_bytes(cls, data: bytes, *, limit: int | None = None) -> "PlainSource":
        """Return *data* as a source; *limit* raises the default `Limits`."""
        return cls(io.BytesIO(data), len(data), "the record in memory", limit=limit)

    def remaining(self) -> int:
        """Bytes to the end."""
        return self._size - self.offset

    def take(self, size: int) -> bytes:
        """The next *size* bytes."""
        self._need(size)
        data = self._file.read(size)
        self._count(len(data), size)
        return data

    def blob(self, size: int) -> Blob:
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
