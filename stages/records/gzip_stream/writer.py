"""One gzip member, written fast: the same bytes on every run, whatever the number of threads.

The content is cut into chunks of a fixed size. Each is deflated alone, ends with a sync flush and so on a
whole byte; put together they are one ordinary stream, which any reader of gzip takes. Level 0 stores: blocks
of 65535 bytes as they are.

Content that compresses so far that `GzipReader` would refuse it is followed by empty blocks, up to the least
size that it accepts.
"""

import os
import struct
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import numpy as np
from isal import isal_zlib

from stages.records.limits import least_size

CHUNK = 1 << 19
"""Bytes that are deflated at a time."""
HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""No name, no time, no flags, an unknown system: as flate2 writes it."""
BLOCK = 0xFFFF
"""Bytes of the longest stored block."""
MOST_THREADS = 4

_LAST_DEFLATED = b"\x03\0"
_EMPTY = b"\0\0\0\xff\xff"
"""A stored block without content."""
_MOST_EMPTY = 1 << 16
"""Empty blocks that are written at once."""
_LAST_STORED = b"\x01\0\0\xff\xff"
_BLOCKS_TOGETHER = 16
_FEW = 8
_MEMORY_LEVEL = 9


class _Body(Protocol):
    """What stands between header and trailer."""

    size: int
    """Bytes of a full chunk."""
    checksum: int
    written: int
    """Bytes in the file so far, without the header."""

    def add(self, chunk: memoryview) -> None:
        """Write *chunk*, of *size* bytes or, the last one, fewer. It stays as it is from here on."""

    def add_all(self, chunks: memoryview) -> None:
        """Write *chunks*, any number of full ones, which may change after this."""

    def end(self, least: int) -> None:
        """Write the final block, after empty ones if fewer than *least* bytes are written."""

    def close(self) -> None:
        """Let threads go."""


class GzipWriter:
    """Compresses what it is given into *file*, which stays open; whole once the block has ended well.

    *level* is 0 (stored) or 1 to 3 (isal's). *threads* are used from the third chunk on; None takes as many
    as there are processors, up to `MOST_THREADS`. *values* is how many small values the content has, as
    `Limits` count them. A piece may be changed again as soon as `write` returns.
    """

    def __init__(
        self, file: BinaryIO, *, level: int = 1, threads: int | None = None, values: int = 0
    ) -> None:
        if not 0 <= level <= 3:
            raise ValueError(f"level {level} is none of 0 (stored), 1, 2, 3")
        self._file = file
        threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self._body: _Body = _Deflated(file, level, threads) if level else _Stored(file)
        self._part = bytearray()
        self._length = 0
        self._values = values
        file.write(HEADER)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Append *piece*."""
        view = memoryview(piece)
        if not view.nbytes:
            return
        view = view.cast("B")
        self._length += view.nbytes
        if self._part:
            view = self._filled(view)
        whole = view.nbytes - view.nbytes % self._body.size
        self._body.add_all(view[:whole])
        self._part += view[whole:]

    def close(self) -> None:
        """End the member."""
        if self._part:
            self._body.add(memoryview(self._part))
        self._body.end(least_size(self._length, self._values))
        self._file.write(struct.pack("<II", self._body.checksum, self._length & 0xFFFFFFFF))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._body.close()

    def _filled(self, view: memoryview) -> memoryview:
        """What is left of *view* when the chunk begun before it is full, or *view* is used up."""
        missing = self._body.size - len(self._part)
        self._part += view[:missing]
        if len(self._part) == self._body.size:
            self._body.add(memoryview(self._part))
            self._part = bytearray()
        return view[missing:]


class _Stored:
    """The bytes as they are, a copy of `_BLOCKS_TOGETHER` blocks at a time."""

    size = BLOCK * _BLOCKS_TOGETHER

    def __init__(self, file: BinaryIO) -> None:
        self.checksum = 0
        self.written = 0
        self._file = file
        self._blocks = np.empty((_BLOCKS_TOGETHER, 5 + BLOCK), np.uint8)
        self._blocks[:, :5] = np.frombuffer(_stored_header(BLOCK), np.uint8)

    def add(self, chunk: memoryview) -> None:
        self.checksum = isal_zlib.crc32(chunk, self.checksum)
        self.written += chunk.nbytes
        if chunk.nbytes == self.size:
            self._blocks[:, 5:] = np.frombuffer(chunk, np.uint8).reshape(_BLOCKS_TOGETHER, BLOCK)
            self._file.write(self._blocks.data)
            return
        for start in range(0, chunk.nbytes, BLOCK):
            block = chunk[start : start + BLOCK]
            self._file.write(_stored_header(block.nbytes))
            self._file.write(block)

    def add_all(self, chunks: memoryview) -> None:
        for start in range(0, chunks.nbytes, self.size):
            self.add(chunks[start : start + self.size])

    def end(self, least: int) -> None:  # noqa: ARG002  stored content is never shorter
        self._file.write(_LAST_STORED)

    def close(self) -> None:
        pass


class _Deflated:
    """Chunks deflated on threads, written in their order."""

    size = CHUNK

    def __init__(self, file: BinaryIO, level: int, threads: int) -> None:
        self.checksum = 0
        self.written = 0
        self._file = file
        self._level = level
        self._threads = threads
        self._count = 0
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[tuple[bytes, int]], int]] = deque()

    def add(self, chunk: memoryview) -> None:
        self._count += 1
        if self._threads > 1 and self._count > 2 and self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="gzip")
        if self._pool is None:
            self._put(*_deflated(chunk, self._level), chunk.nbytes)
            return
        self._waiting.append((self._pool.submit(_deflated, chunk, self._level), chunk.nbytes))
        while len(self._waiting) > self._threads + 1:
            self._put_first()

    def add_all(self, chunks: memoryview) -> None:
        # A few are copied, so that the threads need not run dry before the next piece.
        few = self._threads > 1 and chunks.nbytes <= _FEW * self.size
        for start in range(0, chunks.nbytes, self.size):
            chunk = chunks[start : start + self.size]
            self.add(memoryview(bytes(chunk)) if few else chunk)
        if not few:
            self._settle()

    def end(self, least: int) -> None:
        self._settle()
        missing = -(-max(least - self.written, 0) // len(_EMPTY))
        while missing:
            count = min(missing, _MOST_EMPTY)
            self._file.write(_EMPTY * count)
            missing -= count
        self._file.write(_LAST_DEFLATED)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _settle(self) -> None:
        while self._waiting:
            self._put_first()

    def _put_first(self) -> None:
        future, size = self._waiting.popleft()
        self._put(*future.result(), size)

    def _put(self, data: bytes, checksum: int, size: int) -> None:
        self._file.write(data)
        self.written += len(data)
        self.checksum = isal_zlib.crc32_combine(self.checksum, checksum, size)


def _deflated(chunk: memoryview, level: int) -> tuple[bytes, int]:
    """*chunk* as blocks that need nothing before them and end on a whole byte, and its checksum."""
    stream = isal_zlib.compressobj(level, isal_zlib.DEFLATED, -isal_zlib.MAX_WBITS, _MEMORY_LEVEL)
    data = stream.compress(chunk) + stream.flush(isal_zlib.Z_SYNC_FLUSH)
    return data, isal_zlib.crc32(chunk)


def _stored_header(size: int) -> bytes:
    return struct.pack("<BHH", 0, size, size ^ 0xFFFF)
