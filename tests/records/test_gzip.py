"""Gzip: one member that every reader accepts, reproducible bytes, and checks of untrusted files."""

import gzip
import io
import random
import struct
import subprocess
import sys
import threading
import zlib
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from stages.contracts.errors import RecordError
from stages.records.gzip_stream import BLOCK, CHUNK, GzipReader, write_compressed, write_stored

RANDOM = random.Random(0)  # noqa: S311  no secret
NOISE = RANDOM.randbytes(300_000)
FLOATS = np.random.default_rng(0).standard_normal(5 * CHUNK // 4, dtype=np.float32).tobytes()
ZEROS = bytes(9 * CHUNK)


def zipped(content, level=1, threads=1, *, step=None):
    file = io.BytesIO()
    step = step or len(content) or 1
    pieces = (content[start : start + step] for start in range(0, len(content), step))
    if level:
        write_compressed(pieces, file, threads=threads)
    else:
        write_stored(pieces, file)
    return file.getvalue()


def read(path, *, limit=None):
    """The content of *path*, whose length the member declares (all of these are below 4 GiB)."""
    with closing(GzipReader.of_file(path, limit=limit)) as source:
        content = source.read_array(struct.unpack("<I", path.read_bytes()[-4:])[0]).tobytes()
        source.finish()
    return content


@pytest.fixture
def path(tmp_path):
    return tmp_path / "record.mpk.gz"


CONTENTS = {
    "nothing": b"",
    "a byte": b"a",
    "noise": NOISE,
    "floats": FLOATS,
    "zeros": ZEROS,
    "a chunk": FLOATS[:CHUNK],
    "blocks": NOISE[: 2 * BLOCK],
    "floats and zeros": (FLOATS[: 2 * CHUNK] + ZEROS[: 3 * CHUNK + 5]) * 3,
}


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_written_file_is_read_by_other_gzip_readers(content, level, path):
    data = zipped(content, level)
    path.write_bytes(data)
    member = zlib.decompressobj(31)

    assert gzip.decompress(data) == content
    assert member.decompress(data) == content
    assert member.eof
    assert not member.unused_data
    assert read(path) == content


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize(
    "content", [FLOATS, CONTENTS["floats and zeros"]], ids=["floats", "floats and zeros"]
)
def test_bytes_do_not_depend_on_threads_or_pieces(content, level):
    once = zipped(content, level, 1)

    assert zipped(content, level, 2) == once
    assert zipped(content, level, 3) == once
    assert zipped(content, level, 2, step=700_001) == once
    assert zipped(content, level, 2, step=3 * CHUNK) == once


def test_header_equals_that_of_flate2_without_name_and_time():
    assert zipped(b"abc")[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@pytest.mark.parametrize("write", [write_compressed, write_stored])
def test_piece_can_be_modified_after_the_next_is_requested(write):
    piece = bytearray(FLOATS)
    file = io.BytesIO()

    def pieces():
        yield piece
        piece[:] = bytes(len(piece))
        yield FLOATS[: 2 * CHUNK]

    write(pieces(), file)

    assert gzip.decompress(file.getvalue()) == FLOATS + FLOATS[: 2 * CHUNK]


def test_error_of_the_content_or_of_the_disk_is_raised_after_the_threads_have_ended():
    class FullDisk(io.BytesIO):
        def write(self, data):
            if self.tell() > CHUNK:
                raise OSError(28, "no space left")
            return super().write(data)

    def pieces():
        yield FLOATS
        raise KeyError

    before = threading.enumerate()
    with pytest.raises(KeyError):
        write_compressed(pieces(), io.BytesIO(), threads=2)
    with pytest.raises(OSError, match="no space left"):
        write_compressed([FLOATS], FullDisk(), threads=2)
    assert set(threading.enumerate()) <= set(before)


@settings(deadline=None, max_examples=examples(40))
@given(
    level=st.sampled_from([0, 1, 6, 9]),
    parts=st.lists(
        st.tuples(st.sampled_from(["noise", "zeros", "text"]), st.integers(0, 50_000)), max_size=6
    ),
    flush=st.sampled_from([zlib.Z_NO_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]),
    steps=st.lists(st.integers(1, 100_000), min_size=1, max_size=5),
)
def test_zlib_output_is_read_in_steps_of_any_size(level, parts, flush, steps, tmp_path_factory):
    path = tmp_path_factory.mktemp("gzip") / "file"
    kinds = {"noise": NOISE, "zeros": ZEROS, "text": b"a text that comes again and again, and " * 6000}
    stream = zlib.compressobj(level, zlib.DEFLATED, 31)
    pieces = [kinds[kind][:size] for kind, size in parts]
    path.write_bytes(b"".join(stream.compress(p) + stream.flush(flush) for p in pieces) + stream.flush())
    content, got = b"".join(pieces), b""

    with closing(GzipReader.of_file(path)) as source:
        for number in range(10**6):
            size = min(steps[number % len(steps)], source.remaining())
            got += source.read(size) if number % 2 else source.read_array(size).tobytes()
            if not source.remaining():
                break
        source.finish()

    assert got == content


def test_flushed_chunks_with_back_references_are_read_correctly(path):
    """The chunks are those of pigz: they end at a byte, and refer to earlier chunks."""
    stream = zlib.compressobj(6, zlib.DEFLATED, 31)
    pieces = [NOISE[:5000] + FLOATS[number : CHUNK - 5000 + number] for number in range(5)]
    data = b"".join(stream.compress(piece) + stream.flush(zlib.Z_SYNC_FLUSH) for piece in pieces)
    path.write_bytes(data + stream.flush())

    assert read(path) == b"".join(pieces)


@pytest.mark.parametrize("mtime", [0, 1_700_000_000])
@pytest.mark.parametrize("flags", range(32))
def test_headers_of_other_writers_are_read(flags, mtime, path):
    head = b"\x1f\x8b\x08" + bytes([flags]) + struct.pack("<IBB", mtime, 2, 3)
    head += struct.pack("<H", 6) + b"ab\x02\0xy" if flags & 4 else b""
    head += b"name\0" if flags & 8 else b""
    head += b"a comment\0" if flags & 16 else b""
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF) if flags & 2 else b""
    path.write_bytes(head + zipped(b"content")[10:])

    assert read(path) == b"content"


def member(content=b"content"):
    return zipped(content)


def end(declared, content=b"content"):
    return struct.pack("<II", zlib.crc32(content), declared)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a gzip file: it starts with b''"),
        (b"PK\x03\x04 and so on", "is not a gzip file: it starts with b'PK"),
        (b"\x1f\x8b\x08\0", "4 bytes are less than a gzip member"),
        (b"\x1f\x8b\x07" + member()[3:], "unsupported compress method"),
        (b"\x1f\x8b\x08\x80" + member()[4:], "flags 0x80"),
        (b"\x1f\x8b\x08\x08" + b"n" * 40, "declares 1852730990 bytes of content"),
        (
            b"\x1f\x8b\x08\x02" + member()[4:10] + b"\1\2" + member()[10:],
            "Incorrect checksum",
        ),
        (member()[:-8] + end(2**32 - 1), "declares 4294967295 bytes of content"),
        (member()[:-8] + end(60_000_000), "hold at most 1032 times as many"),
        (member()[:-8] + end(8), "Incorrect checksum"),
        (member()[:-8] + end(6), "Incorrect checksum"),
        (member()[:-8] + end(7, b"another"), "Incorrect checksum"),
        (member()[:-8] + b"\0" + end(7), "Incorrect checksum"),
        (member() + member(), "surplus bytes after its gzip member"),
        (member() + end(7), "8 surplus bytes after its gzip member"),
        (member()[:10] + b"\x07\0" + end(0, b""), "is corrupt"),
        (
            zipped(b"content", 0)[:12] + b"\0\0\0" + zipped(b"content", 0)[15:],
            "the stream before it is corrupt",
        ),
    ],
)
def test_input_that_is_not_one_complete_member_is_refused(data, message, path):
    path.write_bytes(data)

    with pytest.raises(RecordError) as error:
        read(path)

    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("level", [0, 1])
def test_truncated_or_extended_file_is_refused(level, path):
    data = zipped(b"content " * 9 + NOISE[:50], level)

    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(RecordError):
            read(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(RecordError):
        read(path)


@pytest.mark.parametrize("level", [0, 1])
def test_flipped_bit_is_refused_or_has_no_effect(level, path):
    content = b"content " * 9 + NOISE[:50]
    data = zipped(content, level)

    for place in range(10 * 8, len(data) * 8):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert read(path) == content
        except RecordError:
            continue


def test_truncated_large_file_is_refused(path):
    data = zipped(FLOATS)

    for length in range(CHUNK // 2, len(data), CHUNK // 3):
        path.write_bytes(data[:length] + data[-8:])
        with pytest.raises(RecordError):
            read(path)


def test_bomb_beyond_the_limit_is_refused_unread(path):
    path.write_bytes(gzip.compress(bytes(80 * 2**20)))

    with pytest.raises(RecordError, match="set a higher limit"):
        GzipReader.of_file(path)
    assert len(read(path, limit=2**27)) == 80 * 2**20


def test_bomb_with_false_length_is_stopped_at_its_declared_length(path):
    path.write_bytes(gzip.compress(bytes(80 * 2**20))[:-8] + end(1000, bytes(1000)))

    with closing(GzipReader.of_file(path)) as source:
        source.read(1000)
        with pytest.raises(RecordError, match="1 bytes are declared, but 0 remain"):
            source.read(1)
        with pytest.raises(RecordError, match="surplus content after the end of the record at 1000"):
            source.finish()


def test_skipped_content_is_included_in_the_checksum(path):
    path.write_bytes(zipped(FLOATS))

    with closing(GzipReader.of_file(path)) as source:
        source.skip(len(FLOATS) - 4)
        last = source.read(4)
        source.finish()

    assert last == FLOATS[-4:]


MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from stages.records.gzip_stream import GzipReader, write_compressed, write_stored

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

state = np.random.default_rng(0).standard_normal(25_000_000, dtype=np.float32)
path = Path(sys.argv[1])
before = peak()
write = write_compressed if sys.argv[2] == "1" else write_stored
with path.open("wb") as file:
    write([state.data], file)
print(peak() - before)
size = state.nbytes
del state
before = peak()
source = GzipReader.of_file(path)
source.read_array(size)
source.finish()
print(peak() - before)
"""


@pytest.mark.parametrize("level", [0, 1])
def test_reading_and_writing_need_at_most_32_mb_beyond_the_state(level, path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path), str(level)], capture_output=True, text=True, check=True
    )

    saving, loading = map(int, done.stdout.split())
    assert saving < 32 * 2**20
    assert loading < 32 * 2**20
