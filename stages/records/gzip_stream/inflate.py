"""The inside of a gzip member, inflated: stored blocks by copy, chunks on threads, the rest as it comes.

A stream may be read from any whole byte where a block begins, if the 32 KiB of content before it are known.
So reading goes from one way to the next: `_Stored` up to the first block that is deflated, `Chunks` up to
the first that was not flushed alone, `_Plain` to the end.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from isal import igzip_lib

from stages.contracts.errors import RecordError
from stages.records.gzip_stream.writer import CHUNK, MOST_THREADS

HISTORY = 1 << 15
"""Bytes back that deflate may refer to."""
_WINDOW = 1 << 18
_FLUSHED = b"\0\0\xff\xff"
"""What a sync flush ends with."""
_FINAL = b"\x03\0"
"""An empty final block: a stream that takes it ended on a whole block."""
_LONGEST = CHUNK + (1 << 16)
"""Bytes that a chunk may be deflated to, and be found."""
_FEWEST_CHUNKS = 4
_MISSES = 4


class Span(NamedTuple):
    """Where the deflated bytes lie."""

    name: str
    handle: int
    start: int
    end: int

    def read(self, offset: int, size: int) -> bytes:
        """Up to *size* bytes at *offset*, none from behind the end."""
        return os.pread(self.handle, max(min(size, self.end - offset), 0), offset)

    def wrong(self, offset: int, what: str) -> RecordError:
        """The error for something at *offset* of the file."""
        return RecordError(f"{self.name}, offset {offset} of the compressed file: {what}")


class _Way(Protocol):
    """One way of inflating."""

    offset: int
    """Where the next block begins, once `readinto` has returned 0."""
    ended: bool
    """Whether the final block has been read."""

    def readinto(self, into: memoryview) -> int:
        """Fill the beginning of *into*; 0 where this way does not go on."""

    def close(self) -> None:
        """Let threads go."""


class DeflateStream:
    """Inflates *span* into buffers of the caller; never more than they hold."""

    def __init__(self, span: Span, *, threads: int | None = None) -> None:
        self._span = span
        self._threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self._history = b""
        self._way: _Way = _Stored(span)
        self._next: Iterator[Callable[[int], _Way]] = iter((self._chunks, self._plain))

    @property
    def offset(self) -> int:
        """Where the stream ended."""
        return self._way.offset

    def readinto(self, into: memoryview) -> int:
        """Fill the beginning of *into*; how many bytes, 0 only at the end of the stream."""
        while not (size := self._way.readinto(into)):
            if self._way.ended:
                return 0
            self._way.close()
            self._way = next(self._next)(self._way.offset)
        begin = max(size - HISTORY, 0)
        self._history = (self._history + into[begin:size])[-HISTORY:]
        return size

    def close(self) -> None:
        """Let threads go."""
        self._way.close()

    def _chunks(self, offset: int) -> _Way:
        return Chunks(self._span, offset, self._threads)

    def _plain(self, offset: int) -> _Way:
        return _Plain(self._span, offset, self._history)


class _Stored:
    """Copies stored blocks straight from the file."""

    def __init__(self, span: Span) -> None:
        self.offset = span.start
        self.ended = False
        self._span = span
        self._left = 0
        self._final = False

    def readinto(self, into: memoryview) -> int:
        filled = 0
        while filled < into.nbytes and (self._left or self._begins()):
            size = min(self._left, into.nbytes - filled)
            got = os.preadv(self._span.handle, [into[filled : filled + size]], self.offset)
            if got != size or self.offset + size > self._span.end:
                raise self._span.wrong(self.offset, f"the stream is cut: {size} bytes are missing")
            self.offset += size
            self._left -= size
            filled += size
        return filled

    def close(self) -> None:
        pass

    def _begins(self) -> bool:
        """Go into the next block that is stored and not empty; False where none follows."""
        while not self._left:
            if self._final:
                self.ended = True
                return False
            header = self._span.read(self.offset, 5)
            if not header or header[0] & 0b110:
                return False
            size = int.from_bytes(header[1:3], "little")
            if len(header) < 5 or size ^ 0xFFFF != int.from_bytes(header[3:], "little"):
                raise self._span.wrong(self.offset, f"{header.hex()} is no beginning of a stored block")
            self.offset += 5
            self._left, self._final = size, bool(header[0] & 1)
        return True


class _Plain:
    """Inflates what comes, on this thread."""

    def __init__(self, span: Span, offset: int, history: bytes) -> None:
        self.offset = offset
        self.ended = False
        self._span = span
        self._stream = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE, 15, history)

    def readinto(self, into: memoryview) -> int:
        content = b""
        while not content and not self.ended:
            content = self._inflated(min(into.nbytes, _WINDOW))
        into[: len(content)] = content
        return len(content)

    def close(self) -> None:
        pass

    def _inflated(self, limit: int) -> bytes:
        data = b""
        if self._stream.needs_input:
            data = self._span.read(self.offset, _WINDOW)
            if not data:
                raise self._span.wrong(self.offset, "the stream is cut: its final block is missing")
            self.offset += len(data)
        try:
            content = self._stream.decompress(data, limit)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # isal's stub does not say that it is one
            raise self._span.wrong(self.offset, f"the stream before it is altered ({error})") from error
        if self._stream.eof:
            self.ended = True
            self.offset -= len(self._stream.unused_data)
        return content


class _Segment(NamedTuple):
    start: int
    sure: bool
    """Whether no flush before its end was passed over."""
    content: Future[bytes | None]
    size: int


class Chunks:
    """Inflates ahead, on threads, what was deflated in chunks that need nothing before them.

    Where such a chunk ends is found by the mark of the flush, and proven: it must inflate on its own to
    `CHUNK` bytes and be at the end of a block just there. What follows it then begins where a block does.
    """

    def __init__(self, span: Span, offset: int, threads: int) -> None:
        self.offset = offset
        self.ended = False
        self._span = span
        self._ahead = threads + 1
        self._segments: deque[_Segment] = deque()
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1 and span.end - offset > _FEWEST_CHUNKS * CHUNK // 2:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gunzip")
        self._seek = offset
        self._hint = 0
        self._hits = 0
        self._misses = 0
        self._content = memoryview(b"")

    def readinto(self, into: memoryview) -> int:
        """Fill the beginning of *into*; 0 where the stream does not go on in chunks."""
        while not self._content:
            content = self._proven()
            if content is None:
                return 0
            self._content = memoryview(content)
        size = min(self._content.nbytes, into.nbytes)
        into[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def close(self) -> None:
        """Let threads go."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _proven(self) -> bytes | None:
        """The content of the next chunk; None where the stream does not go on in chunks."""
        while self._pool is not None:
            while len(self._segments) < self._ahead and self._submitted(self._pool):
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
            if segment.sure or self._misses > _MISSES + self._hits // 8:
                return None
            self._restart()
        return None

    def _submitted(self, pool: ThreadPoolExecutor) -> bool:
        data = self._span.read(self._seek, _LONGEST)
        end = data.find(_FLUSHED, self._hint)
        sure = not self._hint
        if end < 0:
            return False
        size = end + len(_FLUSHED)
        content = pool.submit(_inflated, memoryview(data)[:size])
        self._segments.append(_Segment(self._seek, sure, content, size))
        self._seek += size
        # Chunks are deflated to nearly the same length; searching all of it costs as much as inflating.
        self._hint = size - size // 8
        return True

    def _restart(self) -> None:
        for segment in self._segments:
            segment.content.cancel()
        self._segments.clear()
        self._seek, self._hint = self.offset, 0


def _inflated(data: memoryview) -> bytes | None:
    """The content of a chunk that is *data*; None where *data* is no chunk of `CHUNK` bytes."""
    stream = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
    try:
        content = stream.decompress(data, CHUNK + 1)
        if len(content) != CHUNK or stream.eof or not stream.needs_input:
            return None
        return content if not stream.decompress(_FINAL, 1) and stream.eof else None
    except igzip_lib.IsalError:  # type: ignore[misc]  # isal's stub does not say that it is one
        return None
