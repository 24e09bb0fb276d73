"""Gzip files of one member: a reader that checks untrusted files, and a writer that compresses on threads.

The content is compressed in blocks of a fixed size, so the bytes do not depend on the number of threads.
Content that compresses so well that `GzipReader` would refuse it is followed by empty blocks, up to the
smallest size that it accepts.
"""

import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from isal import igzip_lib, isal_zlib

from stages.contracts.errors import RecordError
from stages.records.byte_readers import WINDOW, ByteReader, check_available, rechunk
from stages.records.limits import ADVICE, LARGEST_RATIO, least_size

CHUNK = 1 << 19
"""Bytes of content that are compressed at a time."""
HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""Header without name, time or flags, and with an unknown system, as flate2 writes it."""
BLOCK = 0xFFFF
"""Bytes of the longest stored block."""
MAX_THREADS = 4

_LEVEL, _MEMORY_LEVEL = 1, 9
_EMPTY = b"\0\0\0\xff\xff"
"""An empty stored block."""
_LAST_DEFLATED = b"\x03\0"
_LAST_STORED = b"\x01\0\0\xff\xff"
_STEP = 1 << 18
_LEAST_SIZE = 18
"""Bytes of a header and a trailer (RFC 1952)."""


def write_compressed(
    pieces: Iterable[bytes | memoryview], file: BinaryIO, *, threads: int | None = None, values: int = 0
) -> None:
    """Compress *pieces* to the empty *file*, on *threads*; None selects the number of processors, at most 4.

    *values* is the number of small values in the content, as `Limits` count them.
    """
    length = checksum = 0
    threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        file.write(HEADER)
        for data, part, size in _deflate_on(pool, rechunk(pieces, CHUNK), threads + 1):
            file.write(data)
            checksum = isal_zlib.crc32_combine(checksum, part, size)
            length += size
    missing = least_size(length, values) + len(HEADER) - file.tell()
    file.write(_EMPTY * -(-missing // len(_EMPTY)) + _LAST_DEFLATED)
    file.write(struct.pack("<II", checksum, length & 0xFFFFFFFF))


def _deflate_on(
    pool: ThreadPoolExecutor, chunks: Iterable[bytearray | memoryview], ahead: int
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the results of `_deflate` in order, while *ahead* chunks are compressed."""
    waiting: deque[Future[tuple[bytes, int, int]]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(_deflate, bytes(chunk)))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _deflate(chunk: bytes) -> tuple[bytes, int, int]:
    """Return *chunk* as independent blocks that end at a byte boundary, its checksum and its length."""
    stream = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, -isal_zlib.MAX_WBITS, _MEMORY_LEVEL)
    data = stream.compress(chunk) + stream.flush(isal_zlib.Z_SYNC_FLUSH)
    return data, isal_zlib.crc32(chunk), len(chunk)


def write_stored(pieces: Iterable[bytes | memoryview], file: BinaryIO) -> None:
    """Write *pieces* to *file* as a member that is not compressed."""
    length = checksum = 0
    file.write(HEADER)
    for block in rechunk(pieces, BLOCK):
        file.write(struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF))
        file.write(block)
        checksum = isal_zlib.crc32(block, checksum)
        length += len(block)
    file.write(_LAST_STORED + struct.pack("<II", checksum, length & 0xFFFFFFFF))


class GzipReader(ByteReader):
    """The content of a gzip file, which is inflated as it is read.

    The content may be as long as `Limits` allow, which *limit* raises to as many bytes. The declared length
    is checked before anything is inflated; `finish` checks the checksum and the end of the file.
    """

    def __init__(self, file: BinaryIO, size: int, name: str, *, limit: int | None = None) -> None:
        super().__init__(file, size, name, limit=limit)
        self._packed_size = size
        self._stream = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        try:
            self._declared = self._read_length()
            self._size = self._find_max_length(self.limits.content)
        except BaseException:
            self._file.close()
            raise

    def _read_length(self) -> int:
        """Return the length of the content that the file declares, modulo 4 GiB."""
        head = self._file.read(8)
        if head[:2] != b"\x1f\x8b":
            raise RecordError(f"{self.name} is not a gzip file: it starts with {head!r}")
        if self._size < _LEAST_SIZE:
            raise RecordError(f"{self.name} is truncated: {self._size} bytes are less than a gzip member")
        if head[3] & 0xE0:
            raise RecordError(f"{self.name} has an unsupported gzip header (flags {head[3]:#04x})")
        self._file.seek(-4, 2)
        declared = int.from_bytes(self._file.read(4), "little")
        self._file.seek(0)
        return declared

    def _find_max_length(self, limit: int) -> int:
        """Return the largest possible length of the content."""
        most = min(limit, LARGEST_RATIO * self._size)
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

    def skip(self, size: int) -> None:
        """Skip *size* bytes."""
        check_available(self, size)
        while size:
            step = min(size, self._window.nbytes or WINDOW)
            self.read(step)
            size -= step

    def finish(self) -> None:
        """Raise `RecordError` unless the content, its length, its checksum and the file end here."""
        if self._window.nbytes or self._decompress(1):
            raise RecordError(f"{self.name} has surplus content after the end of the record at {self.offset}")
        end = self._file.tell() - len(self._stream.unused_data)
        if surplus := self._packed_size - end:
            raise RecordError(
                f"{self.name} has {surplus} surplus bytes after its gzip member, which ends at {end}"
            )

    def _read_into(self, target: memoryview) -> int:
        """Inflate at least 1 byte to the beginning of *target*, and return their number."""
        content = self._decompress(min(len(target), _STEP))
        if not content:
            raise RecordError(
                f"{self.name} is truncated or corrupt: its content is shorter than the {self._declared} "
                "bytes that it declares"
            )
        target[: len(content)] = content
        return len(content)

    def _decompress(self, limit: int) -> bytes:
        """Return up to *limit* bytes of the content; none only at its end."""
        content = b""
        while not content and not self._stream.eof:
            packed = self._file.read(_STEP) if self._stream.needs_input else b""
            if self._stream.needs_input and not packed:
                raise self._error("the stream is truncated: its final block or its checksum is missing")
            try:
                content = self._stream.decompress(packed, limit)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # isal's stub lacks the base class
                raise self._error(f"the stream before it is corrupt ({error})") from error
        return content

    def _error(self, what: str) -> RecordError:
        return RecordError(f"{self.name}, offset {self._file.tell()} of the compressed file: {what}")
