"""Gzip reader: one member without data after it, and never more content than the file declares."""

import struct
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from isal import isal_zlib

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob
from stages.records.gzip_stream.inflate import DeflateStream, Span
from stages.records.limits import ADVICE, LARGEST_RATIO, Limits

_WINDOW = 1 << 16
_STEP = 1 << 20
_MAX_HEADER = 1 << 18


class GzipReader:
    """A `ByteReader` of the content of the gzip file *path*, which is inflated as it is read.

    The content may be as long as `Limits` allow, which *limit* raises to as many bytes. The declared length
    is checked before anything is inflated; `finish` checks the checksum and the end of the file.
    """

    def __init__(self, path: Path, *, limit: int | None = None, threads: int | None = None) -> None:
        self.name = str(path)
        self.offset = 0
        self._size = path.stat().st_size
        self.limits = Limits.for_size(self._size, limit)
        self._file = path.open("rb", buffering=0)
        try:
            self._open_stream(threads)
        except BaseException:
            self._file.close()
            raise

    def _open_stream(self, threads: int | None) -> None:
        head = self._file.read(_MAX_HEADER)
        start = _header_length(head, self.name)
        if self._size < start + 10:
            raise RecordError(f"{self.name} is truncated: {self._size} bytes are less than a gzip member")
        self._file.seek(-8, 2)
        self._checksum: int
        self._declared: int
        self._checksum, self._declared = struct.unpack("<II", self._file.read(8))
        limit = self.limits.content
        self._max_length = self._find_max_length(min(limit, LARGEST_RATIO * self._size), limit)
        self._crc = 0
        self._window = memoryview(b"")
        self._buffer = bytearray(_WINDOW)
        self._produced = 0
        self._stream = DeflateStream(
            Span(self.name, self._file.fileno(), start, self._size - 8), threads=threads
        )

    def _find_max_length(self, most: int, limit: int) -> int:
        """Return the largest possible length of the content, which is declared modulo 4 GiB only."""
        if self._declared <= most:
            return self._declared + (most - self._declared) // 2**32 * 2**32
        if self._declared <= limit:
            raise RecordError(
                f"{self.name} declares {self._declared} bytes of content, but {self._size} bytes of gzip "
                f"hold at most {LARGEST_RATIO} times as many: it is truncated, corrupt or has data after it"
            )
        raise RecordError(
            f"{self.name} declares {self._declared} bytes of content in a file of {self._size} bytes, but at "
            f"most {limit} are allowed: it is truncated, corrupt or a decompression bomb; {ADVICE}"
        )

    def remaining(self) -> int:
        """Return the largest number of bytes that can follow."""
        return self._max_length - self.offset

    def read(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        if 0 <= size <= self._window.nbytes:
            data = bytes(self._window[:size])
            self._window = self._window[size:]
            self.offset += size
            return data
        if size <= _WINDOW:
            self._check_available(size)
            begin = bytes(self._window)
            self._refill(size - len(begin))
            missing = size - len(begin)
            data = begin + bytes(self._window[:missing])
            self._window = self._window[missing:]
            self.offset += size
            return data
        return self.read_array(size).tobytes()

    def read_array(self, size: int) -> Blob:
        """Return the next *size* bytes in memory of their own."""
        self._check_available(size)
        try:
            data = np.empty(size, np.uint8)
        except MemoryError as error:
            raise RecordError(
                f"{self.name} declares {size} bytes in one value, which do not fit into memory"
            ) from error
        self._fill(data.data)
        return data

    def skip(self, size: int) -> None:
        """Skip *size* bytes."""
        self._check_available(size)
        while size:
            step = min(size, self._window.nbytes or _WINDOW)
            self.read(step)
            size -= step

    def finish(self) -> None:
        """Raise `RecordError` unless the content, its length, its checksum and the file end here."""
        surplus = self._window.nbytes or self._stream.readinto(memoryview(bytearray(1)))
        if surplus:
            raise RecordError(f"{self.name} has surplus content after the end of the record at {self.offset}")
        if self._stream.offset != self._size - 8:
            raise RecordError(
                f"{self.name} has {self._size - 8 - self._stream.offset} surplus bytes after its gzip "
                f"member, which ends at {self._stream.offset + 8}"
            )
        if self.offset % 2**32 != self._declared or self._crc != self._checksum:
            raise RecordError(
                f"{self.name} is corrupt: its content has {self.offset} bytes with checksum "
                f"{self._crc:#010x}, but it declares {self._declared} with {self._checksum:#010x}"
            )

    def close(self) -> None:
        """Stop the threads and close the file."""
        self._stream.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_available(self, size: int) -> None:
        if not 0 <= size <= self.remaining():
            raise RecordError(
                f"{self.name}, offset {self.offset}: {size} bytes are declared, but {self.remaining()} remain"
            )

    def _refill(self, least: int) -> None:
        """Inflate at least *least* bytes into the window, which must be used up."""
        size = 0
        while size < least:
            size += self._inflate(
                memoryview(self._buffer)[size : min(_WINDOW, size + self._max_length - self._produced)]
            )
        self._window = memoryview(self._buffer)[:size]

    def _fill(self, into: memoryview) -> None:
        filled = min(self._window.nbytes, into.nbytes)
        into[:filled] = self._window[:filled]
        self._window = self._window[filled:]
        while filled < into.nbytes:
            filled += self._inflate(into[filled : filled + _STEP])
        self.offset += into.nbytes

    def _inflate(self, into: memoryview) -> int:
        """Inflate to the beginning of *into*, update the checksum, and return the number of bytes."""
        size = self._stream.readinto(into)
        if not size:
            raise RecordError(
                f"{self.name} is truncated or corrupt: its content ended after {self._produced} bytes, "
                f"but it declares {self._declared}"
            )
        self._crc = isal_zlib.crc32(into[:size], self._crc)
        self._produced += size
        return size


def _header_length(head: bytes, name: str) -> int:
    """Return the position at which the deflated bytes begin (RFC 1952, 2.3)."""
    if head[:2] != b"\x1f\x8b":
        raise RecordError(f"{name} is not a gzip file: it starts with {head[:8]!r}")
    if len(head) < 10:
        raise RecordError(f"{name} is truncated: {len(head)} bytes are less than a gzip header")
    method, flags = head[2], head[3]
    if method != 8 or flags & 0xE0:
        raise RecordError(f"{name} has an unsupported gzip header (method {method}, flags {flags:#04x})")
    end = 10
    if flags & 4:
        end += 2 + int.from_bytes(head[end : end + 2], "little")
    for flag in (8, 16):
        if flags & flag:
            end = head.find(b"\0", end) + 1 or len(head) + 1
    if flags & 2:
        end += 2
    if end > len(head):
        raise RecordError(f"{name} is truncated, or its gzip header is longer than {_MAX_HEADER} bytes")
    if (
        flags & 2
        and int.from_bytes(head[end - 2 : end], "little") != isal_zlib.crc32(head[: end - 2]) & 0xFFFF
    ):
        raise RecordError(f"{name} is corrupt: its gzip header does not match its checksum")
    return end
