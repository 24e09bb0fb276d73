"""Burnpack, compared with a file that Burn wrote and with constructed files."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import examples

from stages.contracts.errors import RecordError
from stages.records import cbor
from stages.records.burnpack_format import decode, encode
from stages.records.byte_readers import ByteReader
from stages.records.dotted_names import encode_param_id
from stages.records.record_tree import ITEM_SIZES, Map, RawTensor, Record, Signed, Some, Variant

BURNS_OWN = Path(__file__).parents[3] / "shared/burn/model.bpk"


def tensor(dtype="F32", shape=(2,), fill=1):
    size = ITEM_SIZES[dtype]
    for length in shape:
        size *= length
    return RawTensor.of(dtype, shape, bytes([fill]) * size)


def comparable(node):
    """Return *node* in a comparable form, with types and tensor bytes; key order is ignored."""
    if isinstance(node, RawTensor):
        return ("tensor", node.dtype, node.shape, node.data().tobytes())
    if isinstance(node, dict):
        return {key: comparable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [comparable(value) for value in node]
    return (type(node).__name__, struct.pack("<d", node) if isinstance(node, float) else node)


def written(record):
    return b"".join(encode(record))


def read(data, **options):
    source = ByteReader.of_bytes(data)
    record = decode(source, **options)
    source.finish()
    return record


def described(**parts):
    """Return a file with these CBOR parts and 2,048 bytes of data."""
    metadata = b"".join(cbor.encode(parts))
    return with_metadata(metadata)


def with_metadata(metadata, data=bytes(2048)):
    head = struct.pack("<4sHI", b"NRUB", 1, len(metadata)) + metadata
    return head + bytes(-len(head) % 256) + data


def at(start, end, *, dtype="F32", shape=(1,), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end], **more}


@pytest.fixture(scope="module")
def burns_own():
    if not BURNS_OWN.is_file():
        pytest.skip(f"{BURNS_OWN}, a file that Burn wrote, is missing")
    return BURNS_OWN.read_bytes()


KEYS = st.text(st.characters(exclude_characters=".\0", codec="utf-8"), min_size=1, max_size=4).filter(
    lambda key: not key.isdigit()
)
TENSORS = st.builds(
    tensor,
    st.sampled_from(sorted(set(ITEM_SIZES) - {"Flex32"})),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.integers(0, 1),
)
PARAMETERS = st.builds(
    lambda number, param: {"id": encode_param_id(number), "param": param}, st.integers(0, 2**64 - 1), TENSORS
)
SCALARS = st.one_of(
    st.booleans(), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1).map(Signed), st.floats()
)
TREES = st.recursive(
    st.one_of(TENSORS, PARAMETERS, SCALARS),
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, min_size=1, max_size=4), st.lists(inner, min_size=1, max_size=4)
    ),
    max_leaves=12,
)
ITEMS = st.dictionaries(KEYS, TREES, min_size=1, max_size=5)
RECORDS = st.builds(
    lambda item, extra: Record(item, extra=extra or None),
    ITEMS,
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)


def test_burn_file_is_rewritten_byte_for_byte(burns_own):
    assert written(read(burns_own)) == burns_own


def test_burn_file_is_read_as_module_tree_with_parameter_ids(burns_own):
    item = read(burns_own).item

    assert list(item) == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert item["conv1"]["conv"]["weight"]["param"].shape == (64, 1, 3, 3)
    assert len(item["fc1"]["weight"]["id"]) == 13


def test_truncated_burn_file_is_refused_at_every_length(burns_own):
    for end in [*range(2000), *range(2000, len(burns_own), 9973), len(burns_own) - 1]:
        with pytest.raises(RecordError):
            read(burns_own[:end])


@given(RECORDS)
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tree_is_restored_with_ids_numbers_and_texts(record):
    found = read(written(record))

    assert comparable(found.item) == comparable(record.item)
    assert found.extra == record.extra
    assert found.metadata is None
    assert written(found) == written(Record(found.item, extra=record.extra))


@given(RECORDS, st.data())
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_corrupt_file_is_refused_or_read(record, data):
    content = bytearray(written(record))
    size = int.from_bytes(content[6:10], "little") + 10
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(RecordError):
        read(bytes(content))


def test_truncated_small_file_is_refused_at_every_length():
    item = {
        "a": [tensor("F16"), tensor("Bool")],
        "b": {"id": encode_param_id(7), "param": tensor()},
        "c": 1.5,
        "d": True,
    }
    data = written(Record(item, extra={"k": "v"}))

    for end in range(len(data)):
        with pytest.raises(RecordError):
            read(data[:end])


def test_tensors_are_aligned_to_256_in_tree_order_and_named_in_sorted_order():
    data = written(Record({"z": tensor("U8", (3,), 7), "a": tensor("U8", (2,), 9)}))

    assert data[256:259] == b"\7\7\7"
    assert data[259:512] == bytes(253)
    assert data[512:] == b"\x09\x09"
    assert data.index(b"\x61a\xa3") < data.index(b"\x61z\xa3")


def test_empty_record_is_padded_to_the_data_section():
    assert written(Record({})) == b"NRUB\x01\x00\x0a\x00\x00\x00\xa1\x67tensors\xa0" + bytes(236)
    assert read(written(Record({}))).item == {}


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (256, "190100"),
        (2**16, "1a00010000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-(2**63), "3b7fffffffffffffff"),
        (1.0, "f93c00"),
        (1.1, "fb3ff199999999999a"),
        (100000.0, "fa47c35000"),
        (float("inf"), "f97c00"),
        (float("nan"), "f97e00"),
        (-0.0, "f98000"),
        (True, "f5"),
        ("é", "62c3a9"),
        ([1, [2]], "82018102"),
        ({"a": 1}, "a1616101"),
    ],
)
def test_cbor_is_written_in_shortest_form(value, data):
    assert b"".join(cbor.encode(value)).hex() == data


def test_type_hints_are_stripped_and_nil_is_omitted():
    item = {"a": Some(tensor()), "b": None, "c": (1, 2), "d": Map(x=Variant("V1", 0, 3.0))}

    found = read(written(Record(item))).item
    assert comparable(found) == comparable({"a": tensor(), "c": [1, 2], "d": {"x": {"V1": 3.0}}})


def test_consecutive_keys_from_zero_become_a_list_in_numeric_order():
    names = {f"layers.{index}.w": index for index in reversed(range(12))}
    found = read(described(tensors={}, scalars={name: {"UInt": i} for name, i in names.items()})[:-2048]).item

    assert found == {"layers": [{"w": index} for index in range(12)]}


def test_keys_with_a_gap_or_leading_zero_stay_a_dict():
    scalars = {"a.1": {"UInt": 1}, "b.00": {"UInt": 1}, "c.0": {"UInt": 1}, "c.2": {"UInt": 1}}

    found = read(described(tensors={}, scalars=scalars)[:-2048]).item
    assert found == {"a": {"1": 1}, "b": {"00": 1}, "c": {"0": 1, "2": 1}}


def test_burn_0_19_file_without_padding_is_read():
    tensors = {"a": at(0, 4), "b": at(4, 6, dtype="F16"), "c": at(6, 1006, dtype="U8", shape=(1000,))}
    metadata = b"".join(cbor.encode({"tensors": tensors}))
    content = bytes(range(6)) + b"\7" * 1000
    data = struct.pack("<4sHI", b"NRUB", 1, len(metadata)) + metadata + content

    item = read(data).item
    assert b"".join(bytes(item[name].data()) for name in "abc") == content
    assert read(data, keep_data=False).item["c"].shape == (1000,)
    for end in range(len(metadata), len(data)):
        with pytest.raises(RecordError):
            read(data[:end])


def test_file_truncated_by_its_padding_is_not_read_as_0_19():
    data = written(Record({"a": tensor("U8", (1000,))}))
    padding = 256 - len(data[:256].rstrip(b"\0"))

    with pytest.raises(RecordError):
        read(data[:-padding])


@pytest.mark.parametrize("dtype", ["Bool", {"Bool": "Native"}, {"Bool": "U8"}])
def test_every_bool_storage_is_read(dtype):
    data = described(tensors={"a": at(0, 2048, dtype=dtype, shape=(2048,))})

    assert read(data).item["a"].dtype == "Bool"


def test_bool_stored_in_words_is_converted_to_bytes():
    data = described(tensors={"a": at(0, 8, dtype={"Bool": "U32"}, shape=(2,))})[:-2048] + b"\1\0\0\0\0\0\0\0"

    assert bytes(read(data).item["a"].data()) == b"\1\0"


def test_gaps_and_unknown_entries_are_skipped():
    data = described(
        tensors={"a": at(1024, 2048, shape=(256,), later=[1, {"x": [-1, 2.5]}, "text", True])}, later={"x": 1}
    )

    assert read(data).item["a"].shape == (256,)


def test_tensor_read_without_data_has_only_a_shape(burns_own):
    weight = read(burns_own, keep_data=False).item["fc1"]["weight"]["param"]

    assert weight.shape == (1600, 128)
    with pytest.raises(RecordError, match="without its data"):
        weight.data()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"tensors": {"a": at(0, 4), "b": at(0, 4)}}, "inside the previous tensor"),
        ({"tensors": {"a": at(0, 1024, shape=(256,)), "b": at(256, 260)}}, "inside the previous tensor"),
        ({"tensors": {"a": at(8, 12)}}, "not a multiple of 256"),
        ({"tensors": {"a": at(4096, 4100)}}, "are declared"),
        ({"tensors": {"a": at(0, 2**63, shape=(2**61,))}}, "are declared"),
        ({"tensors": {"a": at(8, 4)}}, "not a multiple of 256"),
        ({"tensors": {"a": at(0, 8)}}, "takes 4 bytes"),
        ({"tensors": {"a": at(0, 0, shape=(2**62, 2**62))}}, "elements or more"),
        ({"tensors": {"a": at(0, 0, shape=(0, 2**63))}}, "elements or more"),
        ({"tensors": {"a": at(0, 4, shape=[1] * 33)}}, "an array of 33"),
        ({"tensors": {"a": at(0, 4, shape=(-1,))}}, "expected an integer"),
        ({"tensors": {"a": at(0, 4, dtype="F8")}}, "unknown dtype 'F8'"),
        ({"tensors": {"a": at(0, 4, dtype={"QFloat": {"value": "Q8S"}})}}, "quantized"),
        ({"tensors": {"a": at(0, 4, dtype={"Bool": "U16"})}}, "stored as 'U16'"),
        ({"tensors": {"a": at(0, 4, dtype={})}}, "without a name"),
        ({"tensors": {"a": {"dtype": "F32", "shape": []}}}, "must have a dtype, a shape and two"),
        ({"tensors": {"a": at(0, 4, param_id="x")}}, "expected an integer"),
        ({"tensors": {"": at(0, 4)}}, "must be text without a NUL"),
        ({"tensors": {"a..b": at(0, 4)}}, "must be text without a NUL"),
        ({"tensors": {"../a": at(0, 4)}}, "must be text without a NUL"),
        ({"tensors": {"a.": at(0, 4)}}, "must be text without a NUL"),
        ({"tensors": {"a\0": at(0, 4)}}, "must be text without a NUL"),
        ({"tensors": {".".join("a" * 129): at(0, 4)}}, "with 129 parts"),
        ({"tensors": {"a": at(0, 4), "a.b": at(256, 260)}}, "only one of them can exist"),
        ({"tensors": {"a": at(256, 260), "a.b": at(0, 4)}}, "only one of them can exist"),
        ({"tensors": {"a": at(0, 4)}, "scalars": {"a": {"Int": 1}}}, "a tensor and a scalar"),
        (
            {"tensors": {"a": at(0, 4, param_id=1)}, "scalars": {"a.id": {"Int": 1}}},
            "only one of them can exist",
        ),
        ({"tensors": {}, "scalars": {"a": {"Text": "x"}}}, "found 'Text'"),
        ({"tensors": {}, "scalars": {"a": {}}}, "found ''"),
        ({"tensors": {}, "scalars": {"a": {"Int": 2**63}}}, "64 bits"),
        ({"tensors": {}, "scalars": {"a": {"Float": 1}}}, "expected a float"),
        ({"tensors": {}, "scalars": {"a": {"Bool": 1}}}, "float or boolean"),
        ({"tensors": {}, "metadata": {"a": 1}}, "expected text"),
        ({"tensors": []}, "expected a map"),
    ],
)
def test_content_that_burn_would_not_write_is_refused(parts, message):
    with pytest.raises(RecordError) as raised:
        read(described(**parts))

    assert message in str(raised.value)


DEEP = b"\xa1\x65later" + b"\x81" * 200 + b"\x00"
TWICE = b"\xa1\x67scalars\xa2\x61a\xa1\x63Int\x01\x61a\xa1\x63Int\x01"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"", "found the end of the metadata"),
        (b"\xa1", "a map of 1 is declared"),
        (b"\xbb" + b"\xff" * 8, "a map of 18446744073709551615 is declared"),
        (b"\xa1\x7b" + b"\xff" * 8, "bytes are declared"),
        (b"\xa1\x61\xff\x00", "not valid UTF-8"),
        (b"\xbf\xff", "indefinite or reserved"),
        (b"\xa0\x00", "1 bytes remain after"),
        (DEEP, "deeper than 128"),
        (b"\xa1\x65later\x9b" + b"\xff" * 8, "values are declared"),
        (TWICE, "duplicate"),
        (b"\xa2\x67tensors\xa0\x67tensors\xa0", "duplicate"),
    ],
)
def test_invalid_cbor_metadata_is_refused(metadata, message):
    with pytest.raises(RecordError) as raised:
        read(with_metadata(metadata))

    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "bytes are declared"),
        (b"BURN" + bytes(20), "is not a burnpack file"),
        (b"NRUB\x02\0" + bytes(20), "version 2"),
        (b"NRUB\x00\0" + bytes(20), "version 0"),
        (b"NRUB\x01\0\xff\xff\xff\xff", "at most 104857600"),
        (b"NRUB\x01\0\xff\0\0\0", "255 bytes are declared"),
        (written(Record({})) + b"\0", "after the end of the record"),
    ],
)
def test_invalid_header_is_refused(data, message):
    with pytest.raises(RecordError, match=message):
        read(data)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"a": "text"}, "a is a str, but burnpack stores only tensors and numbers"),
        ({"a.b": 1}, "without a dot"),
        ({"": 1}, "must be text without a NUL"),
        (tensor(), "cannot be named"),
        ({1: 1}, "keys must be text"),
        ({"a": {"id": "no id!", "param": tensor()}}, "not a parameter id"),
        ({"a": [1], "b": {"c": object()}}, "b.c is a object"),
        ({"a": 2**64}, "64 bits"),
    ],
)
def test_unsupported_value_is_refused_with_its_path(item, message):
    with pytest.raises(RecordError) as raised:
        written(Record(item))

    assert message in str(raised.value)


def test_short_names_cannot_create_a_large_tree():
    scalars = {f"{index}." + ".".join("a" * 100): {"UInt": 1} for index in range(1100)}

    with pytest.raises(RecordError, match="more than 100000 nodes"):
        read(described(tensors={}, scalars=scalars))
