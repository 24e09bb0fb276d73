"""A record inside gzip as a `ByteReader`: one member, nothing after it, and never more than it declares."""

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
_LONGEST_HEADER = 1 << 18


class GzipReader:
    """The content of the gzip file *path*, inflated as it is taken.

    The content may be as long as `Limits` admit, which *limit* raises to as many bytes. The declared length
    is checked before anything is inflated, the checksum and the end of the file by `finish`.
    """

    def __init__(self, path: Path, *, limit: int | None = None, threads: int | None = None) -> None:
        self.name = str(path)
        self.offset = 0
        self._size = path.stat().st_size
        self.limits = Limits.for_size(self._size, limit)
        self._file = path.open("rb", buffering=0)
        try:
            self._begin(threads)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, threads: int | None) -> None:
        head = self._file.read(_LONGEST_HEADER)
        start = _header_length(head, self.name)
        if self._size < start + 10:
            raise RecordError(f"{self.name} is cut short: {self._size} bytes hold no whole gzip member")
        self._file.seek(-8, 2)
        self._checksum: int
        self._declared: int
        self._checksum, self._declared = struct.unpack("<II", self._file.read(8))
        limit = self.limits.content
        self._most = self._longest(min(limit, LARGEST_RATIO * self._size), limit)
        self._crc = 0
        self._window = memoryview(b"")
        self._buffer = bytearray(_WINDOW)
        self._produced = 0
        self._stream = DeflateStream(
            Span(self.name, self._file.fileno(), start, self._size - 8), threads=threads
        )

    def _longest(self, most: int, limit: int) -> int:
        """How long the content can be, which is declared modulo 4 GiB only."""
        if self._declared <= most:
            return self._declared + (most - self._declared) // 2**32 * 2**32
        if self._declared <= limit:
            raise RecordError(
                f"{self.name} declares {self._declared} bytes of content, but {self._size} of gzip hold at "
                f"most {LARGEST_RATIO} times as many: it is cut short, altered or followed by something else"
            )
        raise RecordError(
            f"{self.name} declares {self._declared} bytes of content in a file of {self._size} bytes, and at "
            f"most {limit} are read: it is cut short, altered or a bomb; {ADVICE}"
        )

    def remaining(self) -> int:
        """How many bytes there can be at most from here."""
        return self._most - self.offset

    def read(self, size: int) -> bytes:
        """The next *size* bytes."""
        if 0 <= size <= self._window.nbytes:
            data = bytes(self._window[:size])
            self._window = self._window[size:]
            self.offset += size
            return data
        if size <= _WINDOW:
            self._need(size)
            begun = bytes(self._window)
            self._refill(size - len(begun))
            missing = size - len(begun)
            data = begun + bytes(self._window[:missing])
            self._window = self._window[missing:]
            self.offset += size
            return data
        return self.read_array(size).tobytes()

    def read_array(self, size: int) -> Blob:
        """The next *size* bytes in memory of their own."""
        self._need(size)
        try:
            data = np.empty(size, np.uint8)
        except MemoryError as error:
            raise RecordError(f"{self.name} declares {size} bytes in one value: no memory for it") from error
        self._fill(data.data)
        return data

    def skip(self, size: int) -> None:
        """Go past *size* bytes."""
        self._need(size)
        while size:
            step = min(size, self._window.nbytes or _WINDOW)
            self.read(step)
            size -= step

    def finish(self) -> None:
        """Raises `RecordError` unless content, checksum, length and file end here."""
        surplus = self._window.nbytes or self._stream.readinto(memoryview(bytearray(1)))
        if surplus:
            raise RecordError(f"{self.name}: the content goes on after its end at {self.offset}")
        if self._stream.offset != self._size - 8:
            raise RecordError(
                f"{self.name} goes on after its gzip member has ended at {self._stream.offset + 8}: "
                f"{self._size - 8 - self._stream.offset} bytes are too many"
            )
        if self.offset % 2**32 != self._declared or self._crc != self._checksum:
            raise RecordError(
                f"{self.name} is altered: {self.offset} bytes with checksum {self._crc:#010x} came out, "
                f"{self._declared} with {self._checksum:#010x} are declared"
            )

    def close(self) -> None:
        """Let the file go."""
        self._stream.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _need(self, size: int) -> None:
        if not 0 <= size <= self.remaining():
            raise RecordError(
                f"{self.name}, offset {self.offset}: {size} bytes are declared, {self.remaining()} are left"
            )

    def _refill(self, least: int) -> None:
        """Have at least *least* bytes in the window, which is used up."""
        size = 0
        while size < least:
            size += self._inflated(
                memoryview(self._buffer)[size : min(_WINDOW, size + self._most - self._produced)]
            )
        self._window = memoryview(self._buffer)[:size]

    def _fill(self, into: memoryview) -> None:
        begun = min(self._window.nbytes, into.nbytes)
        into[:begun] = self._window[:begun]
        self._window = self._window[begun:]
        while begun < into.nbytes:
            begun += self._inflated(into[begun : begun + _STEP])
        self.offset += into.nbytes

    def _inflated(self, into: memoryview) -> int:
        """Bytes put at the beginning of *into*, and into the checksum while they are in the cache."""
        size = self._stream.readinto(into)
        if not size:
            raise RecordError(
                f"{self.name} is cut short or altered: its content ended after {self._produced} bytes, "
                f"and {self._declared} are declared"
            )
        self._crc = isal_zlib.crc32(into[:size], self._crc)
        self._produced += size
        return size


def _header_length(head: bytes, name: str) -> int:
    """Where the deflated bytes begin. RFC 1952, 2.3."""
    if head[:2] != b"\x1f\x8b":
        raise RecordError(f"{name} is no gzip file: it begins {head[:8]!r}")
    if len(head) < 10:
        raise RecordError(f"{name} is cut short: {len(head)} bytes hold no gzip header")
    method, flags = head[2], head[3]
    if method != 8 or flags & 0xE0:
        raise RecordError(f"{name} is gzip of a kind nobody writes (method {method}, flags {flags:#04x})")
    end = 10
    if flags & 4:
        end += 2 + int.from_bytes(head[end : end + 2], "little")
    for flag in (8, 16):
        if flags & flag:
            end = head.find(b"\0", end) + 1 or len(head) + 1
    if flags & 2:
        end += 2
    if end > len(head):
        raise RecordError(f"{name} is cut short, or its gzip header is longer than {_LONGEST_HEADER} bytes")
    if (
        flags & 2
        and int.from_bytes(head[end - 2 : end], "little") != isal_zlib.crc32(head[: end - 2]) & 0xFFFF
    ):
        raise RecordError(f"{name} is altered: its gzip header does not have the checksum it declares")
    return end
