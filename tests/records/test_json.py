"""JSON: the text that serde_json writes, and a reader that is safe for untrusted files."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples, long

from stages.contracts.errors import RecordError
from stages.records.byte_readers import ByteReader
from stages.records.json_format import decode, encode, encode_pretty
from stages.records.record_tree import RawTensor

TREE = {
    "a": {},
    "b": [],
    "c": [None, True, False, 1, -2, 1.0],
    "d": {"bytes": RawTensor.of("U8", (3,), bytes([0, 10, 255])), "shape": [3], "dtype": "U8"},
    "e": 'é"\\\n\x01\x7f',
    "u": (),
}
PRETTY = """{
  "a": {},
  "b": [],
  "c": [
    null,
    true,
    false,
    1,
    -2,
    1.0
  ],
  "d": {
    "bytes": [
      0,
      10,
      255
    ],
    "shape": [
      3
    ],
    "dtype": "U8"
  },
  "e": "é\\"\\\\\\n\\u0001\x7f",
  "u": null
}"""


def read(text, **options):
    data = text if isinstance(text, bytes) else text.encode()
    return decode(ByteReader.of_bytes(data), **options)


def test_pretty_text_has_one_element_per_line():
    text = b"".join(encode_pretty(TREE)).decode()

    assert text == PRETTY


def test_compact_text_has_no_whitespace_and_equal_content():
    text = b"".join(encode(TREE)).decode()

    assert text == json.dumps(json.loads(PRETTY), separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (1e-5, "0.00001"),
        (1.5e-6, "1.5e-6"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (123456789.125, "123456789.125"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (float("nan"), "null"),
        (float("-inf"), "null"),
    ],
)
def test_float_is_written_as_serde_json_writes_it(number, text):
    assert b"".join(encode(number)).decode() == text


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(deadline=None, max_examples=examples(300))
def test_every_finite_float_is_restored_bit_for_bit(number):
    back = read(b"".join(encode([number])))[0]

    assert isinstance(back, float)
    assert np.float64(back).tobytes() == np.float64(number).tobytes()


@pytest.mark.parametrize("write", [encode, encode_pretty])
@pytest.mark.parametrize("size", [0, 1, 1025, 70_000, 200_001])
def test_bytes_of_any_length_are_restored_from_any_pieces(write, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    halves = (memoryview(data[: size // 3]), memoryview(data[size // 3 :]))

    text = b"".join(write({"p": {"bytes": RawTensor("U8", (size,), lambda: halves)}}))

    assert bytes(read(text)["p"]["bytes"]) == data.tobytes()
    assert json.loads(text)["p"]["bytes"] == data.tolist()
    assert not size or read(text, keep_data=False)["p"]["bytes"].size == size


def test_long_number_lists_are_arrays_and_short_ones_are_lists():
    assert read("[1, 2.5, null, true]") == [1, 2.5, None, True]
    assert read(json.dumps([0.5] * 5000)).dtype == np.float64
    assert read(json.dumps([7] * 5000)).dtype == np.int16
    assert read(json.dumps([7] * 1024)) == [7] * 1024
    assert read(json.dumps([None] * 20)) == [None] * 20
    assert read("[" + "1," * 200_000 + "0.5]")[-1] == 0.5
    assert read(json.dumps([2**63] * 5000)).dtype == np.uint64
    assert read(json.dumps([True] * 5000)).dtype == np.bool_
    assert read(json.dumps([None, True, 2**63, -1, 0.5] * 5000)) == [None, True, 2**63, -1, 0.5] * 5000


def test_long_list_is_read_correctly_across_slices():
    numbers = np.random.default_rng(0).integers(-(2**40), 2**40, 100_000)

    back = read(json.dumps(numbers.tolist()))

    assert np.array_equal(back, numbers)


def test_whitespace_is_accepted_wherever_json_allows_it():
    assert read(' \n{ "a" : [ 1 ,2 ] ,\t"b":{ }}\r\n') == {"a": [1, 2], "b": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,",
        "[1,]",
        "[,1]",
        "[01]",
        "[1 2]",
        "[1.]",
        "[.5]",
        "[+1]",
        "[1e999]",
        "1e999",
        "9" * 400,
        "18446744073709551616",
        "[18446744073709551616, 1.5]",
        "[" + ",".join(["9" * 400, "1.5"] * 1000) + "]",
        "[" + ",".join(["1e999"] * 2000) + "]",
        "[" + "1," * 200_000 + "18446744073709551616]",
        "[" + ('"' + "a" * 60_000 + '",') * 500 + "1]",
        "NaN",
        "[NaN]",
        "[-Infinity]",
        "nul",
        "[tru]",
        "[-]",
        '{"a":1,"a":2}',
        '{"a":1 "b":2}',
        '{"a" 1}',
        "{1:2}",
        "{'a':1}",
        '{"a":1}x',
        '{"a":1}{}',
        '"\x01"',
        '"\\ud800"',
        '"\\x"',
        '"open',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b"\x00",
        b"\x1f\x8b\x08",
        "[" * 200 + "]" * 200,
        "[" * 100_000,
        '{"a":' * 200 + "1" + "}" * 200,
        "[" + "9" * 5000 + "]",
        "[" + "1," * 200_000 + "]",
        "[" + "1," * 200_000 + ",1]",
        "[" + "1" * 2_000_000 + ",1]",
        "[" + ",".join([str(2**70)] * 5000) + "]",
        long("[" + "[]," * 300_000 + "[]]"),  # test_small_values.py has files of fewer values
        '"' + "a" * (2 << 20) + '"',
    ],
)
def test_invalid_json_is_refused_with_file_and_reason(text):
    with pytest.raises(RecordError, match="^the record in memory(, offset [0-9]+)?: ."):
        read(text)


@given(st.data())
@settings(deadline=None, max_examples=examples(400))
def test_corrupt_file_is_refused_or_read_as_python_reads_it(data):
    text = bytearray(PRETTY.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        node = read(bytes(text))
    except RecordError:
        return

    assert as_lists(node) == json.loads(bytes(text))


def as_lists(node):
    if isinstance(node, dict):
        return {key: as_lists(value) for key, value in node.items()}
    if isinstance(node, np.ndarray):
        return node.tolist()
    return [as_lists(value) for value in node] if isinstance(node, list) else node


def test_reading_needs_at_most_a_few_times_the_file_size():
    """A list of the shortest numbers, which as Python's own would be objects of 32 bytes each."""
    text = ('{"value":[' + "0.5," * 500_000 + "1]}").encode()
    source = ByteReader.of_bytes(text)

    tracemalloc.start()
    node = decode(source)["value"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert node.nbytes == 8 * 500_001
    assert peak < 6 * len(text)
