"""A small file with millions of small values is refused after the number that its size allows."""

import gzip
import json
import struct

import msgpack
import pytest
from long_tests import long

from stages.contracts.errors import RecordError
from stages.records.formats import FORMATS, read
from stages.records.limits import LEAST_NUMBERS, LEAST_VALUES
from stages.records.named_records import build_metadata
from stages.records.precision import FullPrecision

METADATA = vars(build_metadata("NamedMpkGzFileRecorder", FullPrecision))
COUNTS = pytest.mark.parametrize("count", [1_000_000, long(15_000_000)])
"""Numbers of values that are above the limits of a small file."""


def packed(unit, count):
    item = b"\xdd" + struct.pack(">I", count) + unit * count
    return b"\x83\xa8metadata" + msgpack.packb(METADATA) + b"\xa4item" + item + b"\xa2_b\x90"


def text(unit, count):
    return json.dumps({"metadata": METADATA}).encode()[:-1] + b',"item":[' + (unit + b",") * count + b"0]}"


def bincode(unit, count):
    """Return vectors of vectors, because a single vector may not have as many elements."""
    texts = b"".join(bytes([len(value)]) + value.encode() for value in METADATA.values())
    inner = b"\xfb" + struct.pack("<H", 40_000) + unit * 40_000
    return texts + b"\xfb" + struct.pack("<H", count // 40_000) + inner * (count // 40_000)


@COUNTS
@pytest.mark.parametrize(
    ("form", "build", "unit", "like"),
    [
        ("named_mpk_gz", packed, b"\xc0", None),
        ("named_mpk_gz", packed, b"\x80", None),
        ("named_mpk_gz", packed, b"\xa1a", None),
        ("json_gz", text, b"{}", None),
        ("json_gz", text, b'"a"', None),
        ("bin_gz", bincode, b"\0", [[None]]),
        ("bin_gz", bincode, b"", [[{}]]),
    ],
)
def test_file_may_have_one_value_per_byte(form, build, unit, like, count, tmp_path):
    path = tmp_path / f"bomb{FORMATS[form].suffix}"
    path.write_bytes(gzip.compress(build(unit, count), 9))
    allowed = LEAST_VALUES + path.stat().st_size

    with pytest.raises(RecordError, match=f"(more than|over) {allowed} .*values"):
        read(path, like=like)


@COUNTS
@pytest.mark.parametrize(
    ("form", "build", "unit"),
    [("named_mpk_gz", packed, b"\x00\xcc\xff"), ("json_gz", text, b"0"), ("json_gz", text, b"1.5")],
)
def test_number_lists_outside_tensors_are_limited(form, build, unit, count, tmp_path):
    path = tmp_path / f"bomb{FORMATS[form].suffix}"
    path.write_bytes(gzip.compress(build(unit, count), 9))

    with pytest.raises(RecordError, match=f"outside tensors has .*{LEAST_NUMBERS}"):
        read(path)
