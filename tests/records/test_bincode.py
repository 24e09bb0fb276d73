"""Bincode 2 as Burn's Bin recorders write it."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import examples

from stages.contracts.errors import RecordError
from stages.records.bincode_reader import decode
from stages.records.bincode_writer import encode
from stages.records.byte_readers import ByteReader
from stages.records.record_tree import ITEM_SIZES, Map, Metadata, RawTensor, Record, Signed, Some, Variant

NUMPY = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "Bool": "?"}


def metadata(version="0.21.0", *, floats="f32", ints="i32"):
    return Metadata(
        floats, ints, "burn_core::record::file::BinFileRecorder", version, "FullPrecisionSettings"
    )


def tensor(dtype, shape=(2,), fill=1):
    size = int(np.prod(shape, dtype=np.int64)) * ITEM_SIZES[dtype]
    return RawTensor.of(dtype, shape, bytes([fill]) * size)


def comparable(node):
    """Return *node* in a comparable form, with types and tensor bytes."""
    if isinstance(node, RawTensor):
        return ("tensor", node.dtype, node.shape, node.data().tobytes())
    if isinstance(node, Some | Variant):
        kept = (node.name, node.index) if isinstance(node, Variant) else ()
        return (type(node).__name__, *kept, comparable(node.value))
    if isinstance(node, dict):
        return (type(node).__name__, [(key, comparable(value)) for key, value in node.items()])
    if isinstance(node, list | tuple):
        return (type(node).__name__, [comparable(value) for value in node])
    return (type(node).__name__, struct.pack("<d", node) if isinstance(node, float) else node)


def written(item, version="0.21.0"):
    return b"".join(encode(Record(item, metadata(version))))


def read(data, like, **options):
    source = ByteReader.of_bytes(data)
    record = decode(source, like, **options)
    source.finish()
    return record


def after_metadata(data, version="0.21.0"):
    return data.removeprefix(b"".join(encode(Record(None, metadata(version)))))


TENSORS = st.builds(
    tensor,
    st.sampled_from(sorted(set(ITEM_SIZES) - {"Flex32"})),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.integers(0, 1),
)
KEYS = st.text(st.characters(exclude_characters=".\0", codec="utf-8"), min_size=1, max_size=5)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Signed),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    TENSORS,
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(Map),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        inner.map(Some),
        st.builds(Variant, KEYS, st.integers(0, 300), inner),
    ),
    max_leaves=12,
)
ITEMS = st.dictionaries(KEYS, TREES, min_size=1, max_size=5)


@given(ITEMS)
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tree_is_restored_with_itself_as_example(item):
    record = read(written(item), item)

    assert comparable(record.item) == comparable(item)
    assert record.metadata == metadata()


@given(ITEMS, st.data())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_corrupt_file_is_refused_or_read(item, data):
    content = bytearray(written(item))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(RecordError):
        read(bytes(content), item)


@pytest.mark.parametrize(
    ("node", "data"),
    [
        (None, "00"),
        (True, "01"),
        (0, "00"),
        (250, "fa"),
        (251, "fbfb00"),
        (2**16, "fc00000100"),
        (2**32, "fd0000000001000000"),
        (Signed(-1), "01"),
        (Signed(126), "fbfc00"),
        (1.0, "000000000000f03f"),
        ("é", "02c3a9"),
        (b"\0", "0100"),
        ((1, 2), "0102"),
        ([1, 2], "020102"),
        ({"a": 1, "b": ()}, "01"),
        (Map(a=1), "01016101"),
        (Some(3), "0103"),
        (Variant("Rank2", 1, 3), "0103"),
        (tensor("F32", (1,), 0), "0400000000010101"),
    ],
)
def test_value_is_encoded_as_bincode_specifies(node, data):
    assert after_metadata(written({"field": node})).hex() == data


def test_file_begins_with_five_metadata_texts():
    assert written(None).startswith(b"\x03f32\x03i32\x28burn_core::")


def test_constant_learning_rate_takes_no_bytes():
    assert after_metadata(written(None)) == b""
    assert read(written(None), ()).item is None


@pytest.mark.parametrize(
    ("version", "dtype", "code"),
    [
        ("0.14.0", "F16", "02"),
        ("0.15.0", "U8", "0a"),
        ("0.15.0", "Bool", "0b"),
        ("0.16.1", "U16", "0a"),
        ("0.16.1", "Bool", "0c"),
        ("0.17.0", "Flex32", "02"),
        ("0.17.0", "F16", "03"),
        ("0.20.0", "Bool", "0d"),
        ("0.21.0", "Bool", "0d00"),
        ("0.21.0", "U8", "0c"),
        ("0.16.0", "Flex32", "01"),
    ],
)
def test_dtype_has_the_number_of_its_version(version, dtype, code):
    data = written({"field": tensor(dtype, (), 1)}, version)

    assert after_metadata(data, version)[1 + ITEM_SIZES[dtype] :].hex() == "00" + code
    assert read(data, {"field": tensor("F32")}).item["field"].dtype == dtype.replace("Flex", "F")


@pytest.mark.parametrize("version", ["0.14.0", "0.16.0", "0.17.0", "0.21.0-pre.2"])
@pytest.mark.parametrize("dtype", sorted(set(ITEM_SIZES) - {"Flex32", "U16"}))
def test_every_dtype_of_every_version_is_restored(version, dtype):
    item = {"field": tensor(dtype, (2, 3))}

    assert comparable(read(written(item, version), item).item) == comparable(item)


def test_example_shapes_and_dtypes_have_no_effect():
    item = {"weight": {"id": "a", "param": tensor("F16", (2, 3))}}

    like = {"weight": {"id": "", "param": tensor("F32", (7,))}}
    assert comparable(read(written(item), like).item) == comparable(item)


def test_elements_without_bytes_are_counted():
    item = {"field": [(), {}, ()]}

    assert read(written(item), item).item == item


def test_optional_value_is_read_as_present_or_absent():
    like = {"bias": Some(tensor("F32")), "last": Some(1)}

    found = read(written({"bias": None, "last": Some(4)}), like).item
    assert found == {"bias": None, "last": Some(4)}


def test_optimizer_states_are_found_in_any_order_and_with_any_ids():
    def state(rank, *shape):
        return Variant("V1", 0, Variant(f"Rank{rank}", rank, {"time": 3, "sum": tensor("F32", shape)}))

    item = Map(x=state(2, 2, 3), y=state(1, 4))

    like = Map(a=state(1, 1), b=state(2, 1, 1), c=state(2, 2, 2))
    assert comparable(read(written(item), like).item) == comparable(item)


def test_bool_stored_in_words_is_converted_to_bytes():
    data = written({"field": None})[:-1] + b"\x08" + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"\x01\x02\x0d\x02"

    assert bytes(read(data, {"field": tensor("Bool")}).item["field"].data()) == b"\x01\x00"


@pytest.mark.parametrize(
    ("floats", "ints", "like", "data", "dtype", "values"),
    [
        ("f32", "i32", "F32", struct.pack("<2f", 1, 2), "F32", [1, 2]),
        ("f64", "i64", "F16", struct.pack("<2d", 1, 2), "F64", [1, 2]),
        ("half::binary16::f16", "i16", "F32", b"\xfb\x00\x3c\x07", "F16", [1, 4.2e-07]),
        ("f32", "i32", "I64", b"\x03\xfc\x00\x00\x01\x00", "I32", [-2, 32768]),
        ("f32", "i64", "I64", b"\x03\xfc\x00\x00\x01\x00", "I64", [-2, 32768]),
        ("f32", "i32", "Bool", b"\x00\x01", "Bool", [False, True]),
    ],
)
def test_tensors_of_0_13_are_read_with_types_from_metadata(floats, ints, like, data, dtype, values):
    head = b"".join(encode(Record(None, metadata("0.16.0", floats=floats, ints=ints))))
    head = head.replace(b"\x060.16.0", b"\x060.13.2")  # which is no longer written
    example = {"field": tensor(like), "last": 1}

    found = read(head + b"\x02" + data + b"\x01\x02" + b"\x07", example).item
    assert (found["field"].dtype, found["field"].shape, found["last"]) == (dtype, (2,), 7)
    array = np.frombuffer(found["field"].data(), NUMPY.get(dtype, f"{dtype[0].lower()}{ITEM_SIZES[dtype]}"))
    np.testing.assert_allclose(array, values, rtol=0.02)
    bare = read(head + b"\x02" + data + b"\x01\x02" + b"\x07", example, keep_data=False).item
    assert bare["field"].shape == (2,)


def test_half_floats_of_0_13_are_read_across_chunks():
    bits = np.random.default_rng(0).integers(0, 2**16, 100_000, dtype=np.uint16)
    bits[::3] %= 300
    head = b"".join(encode(Record(None, metadata("0.16.0", floats="half::binary16::f16"))))
    head = head.replace(b"\x060.16.0", b"\x050.9.0")
    packed = b"".join(bytes([b]) if b < 251 else b"\xfb" + struct.pack("<H", b) for b in bits.tolist())
    size = b"\xfc" + struct.pack("<I", len(bits))

    found = read(head + size + packed + b"\x01" + size, {"w": tensor("F32")}).item["w"]
    assert bytes(found.data()) == bits.tobytes()


def test_tensor_read_without_data_raises_when_data_is_requested():
    item = {"field": tensor("F32", (2, 3)), "last": 1}
    found = read(written(item), item, keep_data=False).item

    assert (found["field"].shape, found["last"]) == ((2, 3), 1)
    with pytest.raises(RecordError, match="without its data"):
        found["field"].data()


@pytest.mark.parametrize(
    ("data", "like", "message"),
    [
        (b"\x02", True, "must begin with true or false"),
        (b"\x02\x00", Some(1), "the tag of an option"),
        (b"\x01", None, "not a zero byte"),
        (b"\xfe", 1, "starts no number"),
        (b"\xfd" + b"\xff" * 8, "", "a text of size 18446744073709551615"),
        (b"\xfd" + b"\xff" * 8, [1], "a vector of"),
        (b"\xfd" + b"\xff" * 8, Map(a=1), "a map of"),
        (b"\xfd" + b"\xff" * 8, tensor("F32"), "a tensor of"),
        (b"\xfd" + b"\xff" * 8, b"", "bytes of"),
        (b"\x01\xff", "", "not valid UTF-8"),
        (b"\x01\x00", [], "but the example has none"),
        (b"\x02\x01a\x01\x01a\x01", Map(a=1), "duplicate"),
        (b"\x01\x02..\x01", Map(a=1), "'..'"),
        (b"\x05\x00", Variant("V1", 0, 1), "case 5 of an enum, but the example has 0 (V1)"),
        (b"\x01\x00\x01\x01\x01", tensor("F32"), "takes 4"),
        (b"\x00\x00\x0e", tensor("F32"), "quantized"),
        (b"\x00\x00\x0f", tensor("F32"), "Burn 0.21.0 has 0 to 14"),
        (b"\x01\x01\x00\x0d\x03", tensor("F32"), "the storage number 3"),
        (b"\x01\x02\x00\x0d\x00", tensor("F32"), "contains 2; expected only 0 and 1"),
        (b"\x00\x02\x00\xfd" + b"\xff" * 8 + b"\x01", tensor("F32"), "elements or more"),
        (b"\x00\x28" + b"\x00" * 50, tensor("F32"), "at most 32"),
    ],
)
def test_bytes_that_do_not_match_the_example_are_refused(data, like, message):
    with pytest.raises(RecordError, match=".") as raised:
        read(written({"field": None})[:-1] + data, {"field": like})

    assert message in str(raised.value)


@pytest.mark.parametrize("version", ["", "main", "0", "v0.21.0", "0.21x"])
def test_unknown_burn_version_is_refused(version):
    with pytest.raises(RecordError, match="the numbers of its dtypes"):
        written({"field": tensor("F32")}, version)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record({"a": 1}), "no metadata"),
        (Record({"a": tensor("F32")}, metadata("0.13.0")), "write for version 0.14"),
        (Record({"a": tensor("U16")}, metadata("0.15.0")), "does not support"),
        (Record({"a": -1}, metadata()), "use `Signed`"),
        (Record({"a": 2**64}, metadata()), "64 bits"),
        (Record({"a": object()}, metadata()), "cannot be recorded"),
        (
            Record({"a": RawTensor("F32", (2,), lambda: (memoryview(b"1234"),))}, metadata()),
            "its data has 4",
        ),
    ],
)
def test_unsupported_value_is_refused_on_write(record, message):
    with pytest.raises(RecordError, match=message):
        b"".join(encode(record))


def test_missing_example_is_explained():
    with pytest.raises(RecordError, match="stores no names; provide an example"):
        read(written({"a": 1}), None)


def test_truncated_file_is_refused_at_every_length():
    item = {"a": tensor("F16"), "b": Map(x=Variant("V", 0, [1, 300])), "c": Some("text"), "d": (None, 1.5)}
    data = written(item)

    for end in range(len(data)):
        with pytest.raises(RecordError):
            read(data[:end], item)


def test_tree_deeper_than_128_levels_is_refused():
    item = {}
    for _ in range(200):
        item = {"a": item}

    with pytest.raises(RecordError, match="deeper than 128"):
        written(item)
