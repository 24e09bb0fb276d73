"""MessagePack: the bytes of msgpack and Burn, and safe reading of untrusted files."""

import math
import struct
import subprocess
import sys
import tracemalloc
from itertools import repeat
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples, long

from stages.contracts.errors import RecordError
from stages.records.byte_readers import ByteReader, Skipped
from stages.records.messagepack_format import decode, encode
from stages.records.named_records import build_metadata, pack_record
from stages.records.precision import FullPrecision
from stages.records.record_tree import RawTensor, Record

METADATA = build_metadata("NamedMpkFileRecorder", FullPrecision)
BURN = Path(__file__).parents[3] / "shared/burn"

integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | integers | floats | st.text()
trees = st.recursive(
    scalars | st.binary(),
    lambda each: st.lists(each, max_size=40) | st.dictionaries(st.text(), each),
    max_leaves=60,
)
number_lists = st.one_of(
    st.lists(
        st.one_of(st.integers(0, 40), st.integers(-40, 300), st.integers(0, 2**16), integers), max_size=90
    ),
    st.lists(floats, max_size=90),
    st.lists(floats | st.integers(0, 9), max_size=90),
    st.lists(
        st.none() | st.integers(0, 2**16) | st.text(max_size=3) | st.just({}) | st.binary(), max_size=90
    ),
)


def packed(node):
    return b"".join(encode(node))


def unpacked(data, **options):
    source = ByteReader.of_bytes(data)
    node = decode(source, **options)
    source.finish()
    return node


def plain(node):
    """*node* with lists and bytes where numpy arrays stand."""
    if isinstance(node, np.ndarray):
        return node.tobytes() if node.dtype == np.uint8 else node.tolist()
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    return [plain(value) for value in node] if isinstance(node, list) else node


@given(tree=trees)
def test_bytes_equal_those_of_msgpack(tree):
    assert packed(tree) == msgpack.packb(tree, use_bin_type=True)


@given(tree=trees | number_lists)
def test_every_tree_is_restored_and_rewritten_byte_for_byte(tree):
    data = packed(tree)

    back = unpacked(data)

    assert plain(back) == tree
    assert packed(plain(back)) == data


@settings(deadline=None, max_examples=examples(20))
@given(numbers=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50), times=st.integers(400, 4000))
def test_long_number_lists_of_any_width_are_read_as_arrays(numbers, times):
    numbers = numbers * times

    back = unpacked(packed(numbers))

    assert back.dtype.itemsize <= 4
    assert back.tolist() == numbers


@pytest.mark.parametrize(("code", "marker"), [(">f4", b"\xca"), (">f8", b"\xcb")])
def test_long_list_of_floats_of_any_width_is_an_array(code, marker):
    numbers = np.random.default_rng(0).standard_normal(70_000).astype(code)
    width = numbers.itemsize
    items = [marker + numbers.tobytes()[at : at + width] for at in range(0, numbers.nbytes, width)]
    data = b"\xdd" + struct.pack(">I", len(numbers)) + b"".join(items)

    back = unpacked(data)

    assert back.dtype == np.float64
    assert np.array_equal(back, numbers)


def test_list_that_mixes_numbers_and_text_is_a_list():
    numbers = [*range(70_000), "text", None, 0.5, b"data", {"a": [1]}, 2**64 - 1, -1]

    assert plain(unpacked(packed(numbers))) == numbers


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (7,), (2, 3)])
def test_tensor_is_a_map_in_burn_order_and_its_memory_is_not_copied(shape):
    data = np.arange(4 * math.prod(shape), dtype=np.uint8)

    pieces = list(encode(pack_record(Record(RawTensor.of("F32", shape, data), METADATA))["item"]))

    expected = {"bytes": data.tobytes(), "shape": list(shape), "dtype": "F32"}
    assert b"".join(pieces) == msgpack.packb(expected)
    assert not len(data) or any(np.shares_memory(np.frombuffer(piece, np.uint8), data) for piece in pieces)


def test_tensor_data_is_skipped_on_request():
    tree = {"a": b"x" * 70_000, "b": [b"", 1], "c": [1] * 16 + [b"yz"]}

    back = unpacked(packed(tree), keep_data=False)

    assert back == {"a": Skipped(70_000), "b": [Skipped(0), 1], "c": [1] * 16 + [Skipped(2)]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "1 bytes are declared, but 0 remain"),
        (b"\xc1", "unexpected byte 0xc1"),
        (b"\xd4\x01\x02", "unexpected byte 0xd4"),
        (b"\xc7\x01\x02\x03", "unexpected byte 0xc7"),
        (b"\x82\xa1a\x01\xa1a\x02", "offset 6 (in a): duplicate key 'a'"),
        (b"\x81\x01\x02", "expected a key that is text, found a value that starts with 0x01"),
        (b"\x81\xc4\x01a\x02", "expected a key that is text, found a value that starts with 0xc4"),
        (b"\x81\xa1a\x91\xa2\xff\xfe", "(in a.0): b'\\xff\\xfe' is not valid UTF-8"),
        (b"\x91" * 128 + b"\x90", "this array is nested deeper than 128"),
        (b"\x81\xa1a" * 129 + b"\xc0", "this map is nested deeper than 128"),
        (b"\xdd\xff\xff\xff\xff\x01", "this array declares at least 4294967295 bytes, but 1 remain"),
        (b"\xdf\x00\x00\x00\x02\xa1a\x01", "this map declares at least 4 bytes, but 3 remain"),
        (b"\xc6\xff\xff\xff\xff\x01", "4294967295 bytes are declared, but 1 remain"),
        (b"\xdb\xff\xff\xff\xff\x01", "4294967295 bytes are declared, but 1 remain"),
        (b"\x01\x02", "has 1 surplus bytes after the end"),
    ],
)
def test_invalid_bytes_are_refused(data, message):
    with pytest.raises(RecordError) as error:
        unpacked(data)

    assert message in str(error.value)


def test_nesting_of_128_levels_is_read():
    assert packed(unpacked(b"\x91" * 128 + b"\x01")) == b"\x91" * 128 + b"\x01"


def test_bytes_after_a_value_are_not_read():
    source = ByteReader.of_bytes(packed([*range(20), *repeat(300, 20), "a", 1]) + b"\x07")

    decode(source)

    assert source.read(1) == b"\x07"


@pytest.mark.parametrize(
    "tree", [{"a": [1.5] * 20, "b": [300] * 9 + [2] * 9, "c": b"data", "d": ["text", {}]}]
)
def test_truncated_file_is_refused_at_every_length(tree):
    data = packed(tree)

    for end in range(len(data)):
        with pytest.raises(RecordError):
            unpacked(data[:end])


MEMORY = """
import resource, struct, sys
from stages.contracts.errors import RecordError
from stages.records.messagepack_format import decode
from stages.records.byte_readers import ByteReader

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

filler = bytes.fromhex(sys.argv[1])
count = 8_000_000 // len(filler)
data = b"\\xdd" + struct.pack(">I", count) + filler * count
before = peak()
try:
    decode(ByteReader.of_bytes(data))
except RecordError as error:
    print(peak() - before, error)
"""


@pytest.mark.parametrize(
    "filler", [b"\x80", b"\xc0", *map(long, (b"\xc4\x00", b"\x81\xa0\x80", b"\x91\x80"))]
)
def test_small_values_cannot_use_many_times_the_file_size(filler):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, filler.hex()], capture_output=True, text=True, check=True
    )

    taken, message = done.stdout.split(maxsplit=1)
    assert int(taken) < 2 * 8_000_000 + 64 * 2**20
    assert "small values need more memory" in message


def test_reading_needs_only_the_memory_of_the_value():
    data = packed({"bytes": bytes(3_000_000), "value": [300] * 200_000})
    tracemalloc.start()

    unpacked(data)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.skipif(not (BURN / "model.mpk").is_file(), reason="the file that Burn wrote is not here")
def test_burn_file_is_rewritten_byte_for_byte():
    data = (BURN / "model.mpk").read_bytes()

    assert packed(plain(unpacked(data))) == data
