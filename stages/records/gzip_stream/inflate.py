"""Decompression of a deflate stream: stored blocks are copied, chunks are inflated on threads.

A deflate stream can be read from any byte boundary at which a block begins, if the 32 KiB of content before
it are available. The stream is therefore read in three modes, one after the other: `_StoredBlocks` up to the
first deflated block, `ParallelChunks` up to the first data that does not consist of independent chunks, and
`_SequentialInflate` to the end.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from isal import igzip_lib

from stages.contracts.errors import RecordError
from stages.records.gzip_stream.writer import CHUNK, MAX_THREADS

HISTORY = 1 << 15
"""Bytes before a position that deflate can refer to."""
_WINDOW = 1 << 18
_FLUSHED = b"\0\0\xff\xff"
"""The last bytes of a sync flush."""
_FINAL = b"\x03\0"
"""An empty final block; a stream that accepts it has ended at a block boundary."""
_MAX_DEFLATED_CHUNK = CHUNK + (1 << 16)
"""Bytes that a deflated chunk may have in order to be detected."""
_MIN_CHUNKS = 4
_MAX_MISSES = 4


class Span(NamedTuple):
    """The range of a file that contains the deflated bytes."""

    name: str
    handle: int
    start: int
    end: int

    def read(self, offset: int, size: int) -> bytes:
        """Return up to *size* bytes at *offset*, none of them beyond the end."""
        return os.pread(self.handle, max(min(size, self.end - offset), 0), offset)

    def error(self, offset: int, what: str) -> RecordError:
        """Return an error for the *offset* in the file."""
        return RecordError(f"{self.name}, offset {offset} of the compressed file: {what}")


class _Mode(Protocol):
    """One mode of inflating."""

    offset: int
    """Position of the next block, valid after `readinto` has returned 0."""
    ended: bool
    """True if the final block has been read."""

    def readinto(self, into: memoryview) -> int:
        """Fill the beginning of *into* and return the number of bytes; 0 if this mode cannot continue."""

    def close(self) -> None:
        """Stop the threads."""


class DeflateStream:
    """Inflates *span* into buffers of the caller, and never more than they hold."""

    def __init__(self, span: Span, *, threads: int | None = None) -> None:
        self._span = span
        self._threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._history = b""
        self._mode: _Mode = _StoredBlocks(span)
        self._next_modes: Iterator[Callable[[int], _Mode]] = iter(
            (self._start_parallel, self._start_sequential)
        )

    @property
    def offset(self) -> int:
        """Return the position in the file at which the stream ended."""
        return self._mode.offset

    def readinto(self, into: memoryview) -> int:
        """Fill the beginning of *into* and return the number of bytes; 0 only at the end of the stream."""
        while not (size := self._mode.readinto(into)):
            if self._mode.ended:
                return 0
            self._mode.close()
            self._mode = next(self._next_modes)(self._mode.offset)
        begin = max(size - HISTORY, 0)
        self._history = (self._history + into[begin:size])[-HISTORY:]
        return size

    def close(self) -> None:
        """Stop the threads."""
        self._mode.close()

    def _start_parallel(self, offset: int) -> _Mode:
        return ParallelChunks(self._span, offset, self._threads)

    def _start_sequential(self, offset: int) -> _Mode:
        return _SequentialInflate(self._span, offset, self._history)


class _StoredBlocks:
    """Copies stored blocks directly from the file."""

    def __init__(self, span: Span) -> None:
        self.offset = span.start
        self.ended = False
        self._span = span
        self._left = 0
        self._final = False

    def readinto(self, into: memoryview) -> int:
        filled = 0
        while filled < into.nbytes and (self._left or self._next_block()):
            size = min(self._left, into.nbytes - filled)
            got = os.preadv(self._span.handle, [into[filled : filled + size]], self.offset)
            if got != size or self.offset + size > self._span.end:
                raise self._span.error(self.offset, f"the stream is truncated: {size} bytes are missing")
            self.offset += size
            self._left -= size
            filled += size
        return filled

    def close(self) -> None:
        pass

    def _next_block(self) -> bool:
        """Move to the next stored block that is not empty; return False at the end of the data."""
        while not self._left:
            if self._final:
                self.ended = True
                return False
            header = self._span.read(self.offset, 5)
            if not header or header[0] & 0b110:
                return False
            size = int.from_bytes(header[1:3], "little")
            if len(header) < 5 or size ^ 0xFFFF != int.from_bytes(header[3:], "little"):
                raise self._span.error(self.offset, f"{header.hex()} is not the header of a stored block")
            self.offset += 5
            self._left, self._final = size, bool(header[0] & 1)
        return True


class _SequentialInflate:
    """Inflates any blocks on the calling thread."""

    def __init__(self, span: Span, offset: int, history: bytes) -> None:
        self.offset = offset
        self.ended = False
        self._span = span
        self._stream = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE, 15, history)

    def readinto(self, into: memoryview) -> int:
        content = b""
        while not content and not self.ended:
            content = self._inflate(min(into.nbytes, _WINDOW))
        into[: len(content)] = content
        return len(content)

    def close(self) -> None:
        pass

    def _inflate(self, limit: int) -> bytes:
        data = b""
        if self._stream.needs_input:
            data = self._span.read(self.offset, _WINDOW)
            if not data:
                raise self._span.error(self.offset, "the stream is truncated: its final block is missing")
            self.offset += len(data)
        try:
            content = self._stream.decompress(data, limit)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # isal's stub does not declare the base class
            raise self._span.error(self.offset, f"the stream before it is corrupt ({error})") from error
        if self._stream.eof:
            self.ended = True
            self.offset -= len(self._stream.unused_data)
        return content


class _Segment(NamedTuple):
    start: int
    sure: bool
    """True if no flush mark before its end was skipped."""
    content: Future[bytes | None]
    size: int


class ParallelChunks:
    """Inflates, ahead of the reader and on threads, chunks that `GzipWriter` deflated independently.

    The end of a chunk is found by the mark of a flush and then verified: the chunk must inflate on its own to
    exactly `CHUNK` bytes and be at the end of a block at that position. The data after it then begins at a
    block boundary.
    """

    def __init__(self, span: Span, offset: int, threads: int) -> None:
        self.offset = offset
        self.ended = False
        self._span = span
        self._ahead = threads + 1
        self._segments: deque[_Segment] = deque()
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1 and span.end - offset > _MIN_CHUNKS * CHUNK // 2:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gunzip")
        self._seek = offset
        self._hint = 0
        self._hits = 0
        self._misses = 0
        self._content = memoryview(b"")

    def readinto(self, into: memoryview) -> int:
        """Fill the beginning of *into* and return the number of bytes; 0 if no chunk follows."""
        while not self._content:
            content = self._next_chunk()
            if content is None:
                return 0
            self._content = memoryview(content)
        size = min(self._content.nbytes, into.nbytes)
        into[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _next_chunk(self) -> bytes | None:
        """Return the content of the next chunk; None if no chunk follows."""
        while self._pool is not None:
            while len(self._segments) < self._ahead and self._submit_segment(self._pool):
                pass
            if not self._segments:
                return None
            segment = self._segments.popleft()
            content = segment.content.result()
            if content is not None:
                self._hits += 1
                self.offset = segment.start + segment.size
                return content
            self._misses += 1
            if segment.sure or self._misses > _MAX_MISSES + self._hits // 8:
                return None
            self._restart()
        return None

    def _submit_segment(self, pool: ThreadPoolExecutor) -> bool:
        """Submit the data up to the next flush mark; return False if no mark is left."""
        data = self._span.read(self._seek, _MAX_DEFLATED_CHUNK)
        end = data.find(_FLUSHED, self._hint)
        sure = not self._hint
        if end < 0:
            return False
        size = end + len(_FLUSHED)
        content = pool.submit(_inflate_chunk, memoryview(data)[:size])
        self._segments.append(_Segment(self._seek, sure, content, size))
        self._seek += size
        # Chunks have nearly equal deflated lengths; searching all of the data costs as much as inflating it.
        self._hint = size - size // 8
        return True

    def _restart(self) -> None:
        for segment in self._segments:
            segment.content.cancel()
        self._segments.clear()
        self._seek, self._hint = self.offset, 0


def _inflate_chunk(data: memoryview) -> bytes | None:
    """Return the content of the chunk *data*; None if *data* is not a chunk of `CHUNK` bytes."""
    stream = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
    try:
        content = stream.decompress(data, CHUNK + 1)
        if len(content) != CHUNK or stream.eof or not stream.needs_input:
            return None
        return content if not stream.decompress(_FINAL, 1) and stream.eof else None
    except igzip_lib.IsalError:  # type: ignore[misc]  # isal's stub does not declare the base class
        return None
