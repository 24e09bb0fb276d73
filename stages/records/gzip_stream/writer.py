"""Gzip writer: one member, compressed on threads, with bytes that do not depend on the number of threads.

The content is divided into chunks of a fixed size. Each is deflated independently and ends with a sync flush,
that is, at a byte boundary; joined, they are one ordinary stream that any gzip reader accepts. Level 0 writes
stored blocks of 65535 bytes.

Content that compresses so well that `GzipReader` would refuse it is followed by empty blocks, up to the
smallest size that it accepts.
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
"""Bytes of content that are deflated at a time."""
HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""Header without name, time or flags, and with an unknown system, as flate2 writes it."""
BLOCK = 0xFFFF
"""Bytes of the longest stored block."""
MAX_THREADS = 4

_LAST_DEFLATED = b"\x03\0"
_EMPTY = b"\0\0\0\xff\xff"
"""An empty stored block."""
_EMPTY_BLOCKS_TOGETHER = 1 << 16
"""Empty blocks that are written at a time."""
_LAST_STORED = b"\x01\0\0\xff\xff"
_BLOCKS_TOGETHER = 16
_MAX_COPIED_CHUNKS = 8
"""Number of chunks in a piece up to which they are copied."""
_MEMORY_LEVEL = 9


class _Body(Protocol):
    """Writes the blocks between header and trailer."""

    size: int
    """Bytes of a full chunk."""
    checksum: int
    written: int
    """Bytes written, without the header."""

    def add(self, chunk: memoryview) -> None:
        """Write *chunk*, of *size* bytes (the last one may be shorter), which must not change afterwards."""

    def add_all(self, chunks: memoryview) -> None:
        """Write *chunks*, any number of full chunks, which may change afterwards."""

    def end(self, least: int) -> None:
        """Write the final block, preceded by empty blocks until *least* bytes are written."""

    def close(self) -> None:
        """Stop the threads."""


class GzipWriter:
    """Context manager that compresses to *file*, which stays open; a normal exit completes the member.

    *level* is 0 (stored) or 1 to 3 (isal's levels). *threads* are used from the third chunk; None selects the
    number of processors, up to `MAX_THREADS`. *values* is the number of small values in the content, as
    `Limits` count them. A piece may be modified after `write` returns.
    """

    def __init__(
        self, file: BinaryIO, *, level: int = 1, threads: int | None = None, values: int = 0
    ) -> None:
        if not 0 <= level <= 3:
            raise ValueError(f"level must be 0 (stored), 1, 2 or 3; got {level}")
        self._file = file
        threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._body: _Body = _DeflateBody(file, level, threads) if level else _StoredBody(file)
        self._partial_chunk = bytearray()
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
        if self._partial_chunk:
            view = self._fill_chunk(view)
        full = view.nbytes - view.nbytes % self._body.size
        self._body.add_all(view[:full])
        self._partial_chunk += view[full:]

    def close(self) -> None:
        """Complete the member."""
        if self._partial_chunk:
            self._body.add(memoryview(self._partial_chunk))
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

    def _fill_chunk(self, view: memoryview) -> memoryview:
        """Fill the partial chunk from *view* and return the rest of *view*."""
        missing = self._body.size - len(self._partial_chunk)
        self._partial_chunk += view[:missing]
        if len(self._partial_chunk) == self._body.size:
            self._body.add(memoryview(self._partial_chunk))
            self._partial_chunk = bytearray()
        return view[missing:]


class _StoredBody:
    """Writes stored blocks, copying `_BLOCKS_TOGETHER` of them at a time."""

    size = BLOCK * _BLOCKS_TOGETHER

    def __init__(self, file: BinaryIO) -> None:
        self.checksum = 0
        self.written = 0
        self._file = file
        self._blocks = np.empty((_BLOCKS_TOGETHER, 5 + BLOCK), np.uint8)
        self._blocks[:, :5] = np.frombuffer(_block_header(BLOCK), np.uint8)

    def add(self, chunk: memoryview) -> None:
        self.checksum = isal_zlib.crc32(chunk, self.checksum)
        self.written += chunk.nbytes
        if chunk.nbytes == self.size:
            self._blocks[:, 5:] = np.frombuffer(chunk, np.uint8).reshape(_BLOCKS_TOGETHER, BLOCK)
            self._file.write(self._blocks.data)
            return
        for start in range(0, chunk.nbytes, BLOCK):
            block = chunk[start : start + BLOCK]
            self._file.write(_block_header(block.nbytes))
            self._file.write(block)

    def add_all(self, chunks: memoryview) -> None:
        for start in range(0, chunks.nbytes, self.size):
            self.add(chunks[start : start + self.size])

    def end(self, least: int) -> None:  # noqa: ARG002  stored blocks are never shorter than the content
        self._file.write(_LAST_STORED)

    def close(self) -> None:
        pass


class _DeflateBody:
    """Deflates chunks on threads and writes them in order."""

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
            self._write_chunk(*_deflate(chunk, self._level), chunk.nbytes)
            return
        self._waiting.append((self._pool.submit(_deflate, chunk, self._level), chunk.nbytes))
        while len(self._waiting) > self._threads + 1:
            self._write_first()

    def add_all(self, chunks: memoryview) -> None:
        # A few chunks are copied, so that the threads still have work when the next piece arrives.
        copied = self._threads > 1 and chunks.nbytes <= _MAX_COPIED_CHUNKS * self.size
        for start in range(0, chunks.nbytes, self.size):
            chunk = chunks[start : start + self.size]
            self.add(memoryview(bytes(chunk)) if copied else chunk)
        if not copied:
            self._write_waiting()

    def end(self, least: int) -> None:
        self._write_waiting()
        missing = -(-max(least - self.written, 0) // len(_EMPTY))
        while missing:
            count = min(missing, _EMPTY_BLOCKS_TOGETHER)
            self._file.write(_EMPTY * count)
            missing -= count
        self._file.write(_LAST_DEFLATED)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _write_waiting(self) -> None:
        while self._waiting:
            self._write_first()

    def _write_first(self) -> None:
        future, size = self._waiting.popleft()
        self._write_chunk(*future.result(), size)

    def _write_chunk(self, data: bytes, checksum: int, size: int) -> None:
        self._file.write(data)
        self.written += len(data)
        self.checksum = isal_zlib.crc32_combine(self.checksum, checksum, size)


def _deflate(chunk: memoryview, level: int) -> tuple[bytes, int]:
    """Return *chunk* as independent blocks that end at a byte boundary, and its checksum."""
    stream = isal_zlib.compressobj(level, isal_zlib.DEFLATED, -isal_zlib.MAX_WBITS, _MEMORY_LEVEL)
    data = stream.compress(chunk) + stream.flush(isal_zlib.Z_SYNC_FLUSH)
    return data, isal_zlib.crc32(chunk)


def _block_header(size: int) -> bytes:
    return struct.pack("<BHH", 0, size, size ^ 0xFFFF)
