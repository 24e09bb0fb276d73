"""Inflating ahead on threads, where chunks of a stream need nothing before them, as `GzipWriter` writes."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from isal import igzip_lib

from stages.records.gzipped.span import Span
from stages.records.gzipped.writer import CHUNK

_FLUSHED = b"\0\0\xff\xff"
"""What a sync flush ends with."""
_FINAL = b"\x03\0"
"""An empty final block: a stream that takes it ended on a whole block."""
_LONGEST = CHUNK + (1 << 16)
"""Bytes that a chunk may be deflated to, and be found."""
_FEWEST_CHUNKS = 4
_MISSES = 4


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
