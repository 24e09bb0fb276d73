"""The inside of a gzip member, inflated: stored blocks by copy, chunks on threads, the rest as it comes.

A stream may be read from any whole byte where a block begins, if the 32 KiB of content before it are known.
So reading goes from one way to the next: `_Stored` up to the first block that is deflated, `Chunks` up to
the first that was not flushed alone, `_Plain` to the end.
"""

import os
from collections.abc import Callable, Iterator
from typing import Protocol

from isal import igzip_lib

from stages.records.gzipped.chunks import Chunks
from stages.records.gzipped.span import Span
from stages.records.gzipped.writer import MOST_THREADS

HISTORY = 1 << 15
"""Bytes back that deflate may refer to."""
_WINDOW = 1 << 18


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
