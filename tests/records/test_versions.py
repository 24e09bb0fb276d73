"""Records of every Burn from 0.9 to 0.21, as trees that the MessagePack or JSON reader returns."""

from dataclasses import asdict
from pathlib import Path

import msgpack
import numpy as np
import pytest

from stages.contracts.errors import RecordError
from stages.records.byte_readers import ByteReader, Skipped
from stages.records.messagepack_format import decode
from stages.records.named_records import build_metadata, pack_record, unpack_record
from stages.records.precision import FullPrecision, HalfPrecision
from stages.records.record_tree import Metadata, RawTensor, Record, Some, Variant

FULL = Metadata("f32", "i32", "", "0.13.2", "FullPrecisionSettings")
HALF = Metadata("half::binary16::f16", "i16", "", "0.11.1", "HalfPrecisionSettings")
DOUBLE = Metadata("f64", "i64", "", "0.9.0", "DoublePrecisionSettings")
REAL = Path(__file__).parents[3] / "shared" / "burn" / "model.mpk"


def blob(data):
    return np.frombuffer(bytes(data), np.uint8)


def data_map(data, shape, dtype):
    return {"bytes": data, "shape": shape, "dtype": dtype}


def read(node, metadata=FULL):
    tree = {"metadata": asdict(metadata), "item": {"layer": {"weight": node}}}
    return unpack_record(tree, "model.mpk").item["layer"]["weight"]


@pytest.mark.parametrize(
    ("dtype", "data", "shape", "expected"),
    [
        ("F32", bytes(8), [2], "F32"),
        ("Flex32", bytes(8), [1, 2], "F32"),
        ("BF16", bytes(4), [2], "BF16"),
        ("I8", b"\xff", [], "I8"),
        ("Bool", b"\0\1", [2], "Bool"),
        ({"Bool": "Native"}, b"\0\1", [2], "Bool"),
        ({"Bool": "U8"}, b"\0\1", [2], "Bool"),
        ({"Bool": "U32"}, b"\0\0\0\0\1\0\0\0", [2], "Bool"),
        ("F64", b"", [3, 0], "F64"),
    ],
)
def test_tensor_of_0_14_and_later_is_read_in_every_dtype(dtype, data, shape, expected):
    for form in (blob(data), list(data), np.frombuffer(data, np.uint8).astype(np.int64)):
        tensor = read(data_map(form, shape, dtype))

        assert (tensor.dtype, tensor.shape) == (expected, tuple(shape))
        assert tensor.data() == (b"\0\1" if expected == "Bool" else data)


@pytest.mark.parametrize(
    ("metadata", "values", "dtype", "layout", "expected"),
    [
        (FULL, [1.5, -2.0], "F32", "<f4", [1.5, -2.0]),
        (FULL, np.array([1.5, -2.0], ">f4"), "F32", "<f4", [1.5, -2.0]),
        (FULL, [1.5, 2], "F32", "<f4", [1.5, 2.0]),
        (DOUBLE, [1.5, -2.0], "F64", "<f8", [1.5, -2.0]),
        (HALF, [0x3E00, 0xC000], "F16", "<f2", [1.5, -2.0]),
        (HALF, np.array([0x3E00, 0xC000], np.uint16), "F16", "<f2", [1.5, -2.0]),
        (HALF, [-3, 4], "I16", "<i2", [-3, 4]),
        (FULL, [-3, 4], "I32", "<i4", [-3, 4]),
        (DOUBLE, np.array([-3, 4], np.int8), "I64", "<i8", [-3, 4]),
        (FULL, [True, False], "Bool", "u1", [1, 0]),
        (FULL, np.array([True, False]), "Bool", "u1", [1, 0]),
    ],
)
def test_numbers_of_0_13_and_earlier_have_the_type_in_the_metadata(metadata, values, dtype, layout, expected):
    tensor = read({"value": values, "shape": [2]}, metadata)

    assert tensor.dtype == dtype
    assert np.frombuffer(tensor.data(), layout).tolist() == expected


def test_bf16_of_0_13_and_empty_tensors_are_read():
    bits = Metadata("half::bfloat::bf16", "i16", "", "0.13.0", "")

    assert read({"value": [0x3FC0], "shape": [1]}, bits).dtype == "BF16"
    assert read({"value": [], "shape": [0, 4]}, HALF).dtype == "F16"
    assert read({"value": [], "shape": [0]}, FULL).data() == b""


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (data_map(blob(bytes(7)), [2], "F32"), "has 7 bytes, but shape .* takes 8"),
        (data_map(Skipped(7), [2], "F32"), "has 7 bytes, but shape .* takes 8"),
        (data_map(blob(b""), [-1, 0], "F32"), "shape must be non-negative integers"),
        (data_map(blob(b""), [1.0], "F32"), "shape must be non-negative integers"),
        (data_map(blob(b""), [True], "F32"), "shape must be non-negative integers"),
        (data_map(blob(b""), "4", "F32"), "shape must be a list"),
        (data_map(blob(b"\0"), [1] * 33, "U8"), "at most 32 sizes"),
        (data_map(blob(b""), [0, 2**32, 2**32], "F32"), "2\\*\\*63 elements or more"),
        (data_map(blob(b""), [2**62, 2], "U8"), "2\\*\\*63 elements or more"),
        (data_map(blob(b"\0"), [1], "F8"), "dtype must be one of"),
        (data_map(blob(b"\0"), [1], 7), "dtype must be one of"),
        (data_map(blob(b"\0"), [1], {"Bool": "U16"}), "dtype must be one of"),
        (data_map(blob(b"\0"), [1], {"Bool": ["Native"]}), "dtype must be one of"),
        (data_map(blob(b"\0"), [1], {"QFloat": {"value": "Q8S"}}), "quantized.*Q8S.*dequantize"),
        (data_map(blob(b"\2"), [1], "Bool"), "Bool but contains 2"),
        (data_map(blob(b"\0\0\0\2"), [1], {"Bool": "U32"}), "Bool but contains 33554432"),
        (data_map([256], [1], "U8"), "bytes must be binary"),
        (data_map([1.0], [1], "U8"), "bytes must be binary"),
        (data_map("a", [1], "U8"), "bytes must be binary"),
        ({"value": [1.0], "shape": [2]}, "has 1 values, expected 2"),
        ({"value": [1.0], "shape": [-1]}, "shape must be non-negative integers"),
        ({"value": [None], "shape": [1]}, "NaN and infinity as null"),
        ({"value": [True, 1], "shape": [2]}, "bool among numbers"),
        ({"value": [2**31], "shape": [1]}, "does not fit the metadata's i32"),
        ({"value": [10**400, 1.0], "shape": [2]}, "does not fit into 64 bits"),
        ({"a..b": 1}, "has the name 'a..b'"),
        ({"a\0": 1}, "a name must be text without NUL"),
    ],
)
def test_inconsistent_tensor_is_refused_with_its_path(node, what):
    with pytest.raises(RecordError, match=f"^model.mpk, layer.weight: .*{what}"):
        read(node)


@pytest.mark.parametrize(("float_type", "int_type"), [("f8", "i32"), ("f32", "i7")])
def test_numbers_without_a_type_in_the_metadata_are_refused(float_type, int_type):
    metadata = Metadata(float_type, int_type, "", "", "")
    values = [1.5] if float_type == "f8" else [1]

    with pytest.raises(RecordError, match="layer.weight.*the metadata declares"):
        read({"value": values, "shape": [1]}, metadata)


def test_struct_with_field_names_of_a_tensor_stays_a_struct():
    node = {"value": None, "shape": [1]}

    assert read(node) == node
    assert read({"value": [1], "shape": ["a"]}) == {"value": [1], "shape": ["a"]}
    for part in (None, [None], [{}], ["text"], {"id": "a"}):
        assert read(data_map(part, [1], "U8")) == data_map(part, [1], "U8")
        assert read(data_map([0], part, "U8")) == data_map([0], part, "U8")


def test_map_with_value_and_shape_is_a_struct_in_later_versions():
    node = {"value": [1.0], "shape": [1]}

    for version in ("0.15.0", "0.21.0", "1.0.0"):
        assert read(node, Metadata("f32", "i32", "", version, "")) == node
    for version in ("0.9.0", "0.13.2", "0.14.0", ""):
        assert read(node, Metadata("f32", "i32", "", version, "")).dtype == "F32"


def test_numbers_outside_tensors_become_lists_and_blobs_become_bytes():
    assert read([np.arange(20), blob(b"ab")]) == [list(range(20)), b"ab"]


def test_tensor_read_without_data_raises_when_data_is_requested():
    tensor = read(data_map(Skipped(8), [2], "F32"))

    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("F32", (2,), 8)
    with pytest.raises(RecordError, match="was read without its data"):
        list(tensor.pieces())


def container(**changes):
    metadata = {"float": "f32", "int": "i32", "format": "a", "version": "0.18.0", "settings": "b"}
    tree = {"_b": [], "more": 1, "item": {"a": 1}, "metadata": metadata} | changes
    return {key: value for key, value in tree.items() if value != "missing"}


@pytest.mark.parametrize("marker", [[], (), None, "missing"])
def test_record_is_read_with_each_form_of_its_marker_and_without(marker):
    assert unpack_record(container(_b=marker), "f").item == {"a": 1}


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ([], "not a Burn record.*a list"),
        ({"metadata": {}}, "not a Burn record.*metadata"),
        (container(_b={}), "_b: expected an empty array or nil.*dict"),
        (container(_b=[1]), "_b"),
        (container(_b=0), "_b"),
        (container(metadata=[]), "metadata: expected a map"),
        (container(metadata={"float": "f32"}), "int, format, version, settings must be text"),
        (container(metadata={**container()["metadata"], "int": 32}), "int must be text"),
    ],
)
def test_content_that_is_not_a_record_is_refused_with_the_keys_found(tree, what):
    with pytest.raises(RecordError, match=f"^model.mpk.*{what}"):
        unpack_record(tree, "model.mpk")


def test_record_is_written_in_burn_order_without_type_hints():
    item = {"b": Some(1), "a": (None, None), "c": Variant("Rank1", 1, {"x": 2})}

    tree = pack_record(Record(item, build_metadata("NamedMpkGzFileRecorder", FullPrecision)))

    assert list(tree) == ["metadata", "item", "_b"]
    assert list(tree["metadata"]) == ["float", "int", "format", "version", "settings"]
    assert tree["item"] == {"b": 1, "a": [None, None], "c": {"Rank1": {"x": 2}}}
    assert msgpack.packb(tree["_b"]) == b"\x90"
    with pytest.raises(RecordError, match="without metadata"):
        pack_record(Record(item))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"a": {"b": object()}}, "item.a.b is a builtins.object"),
        ({"a": [1, {2: 3}]}, "the record has the key 2 at 'item.a.1'"),
        ({"a": np.float64(1)}, "item.a is a numpy.float64"),
        ({"a": {1, 2}}, "item.a is a builtins.set"),
        ({"a": 2**64}, "item.a is 18446744073709551616, which does not fit into 64 bits"),
        ({"a": "\ud800"}, "item.a has the text '\\ud800', which is not valid Unicode"),
        ({"a": np.zeros((2, 2))}, "item.a is a numpy.ndarray"),
        ({"a": RawTensor.of("F8", (1,), b"")}, "item.a is a tensor of the unsupported dtype 'F8'"),
        (
            {"a": RawTensor("F32", (2**30,), tuple)},
            "item.a has 4294967296 bytes, but a value in MessagePack and JSON is limited to 4 GiB",
        ),
    ],
)
def test_unsupported_value_is_refused_with_its_path(node, message):
    with pytest.raises(RecordError) as error:
        pack_record(Record(node, FULL))

    assert message in str(error.value)


def test_too_deep_or_cyclic_tree_is_not_written():
    endless = []
    endless.append(endless)

    with pytest.raises(RecordError, match="deeper than 128"):
        pack_record(Record(endless, FULL))


def test_metadata_equals_that_of_burn():
    half = build_metadata("NamedMpkFileRecorder", HalfPrecision)

    assert half.float == "half::binary16::f16"
    assert half.int == "i16"
    assert half.settings == "HalfPrecisionSettings"
    assert half.version == "0.21.0"
    assert half.format == (
        "burn_core::record::file::NamedMpkFileRecorder<burn_core::record::settings::HalfPrecisionSettings>"
    )


@pytest.mark.skipif(not REAL.is_file(), reason=f"the real record {REAL} is not here")
def test_burn_file_is_read_and_rewritten_byte_for_byte():
    data = REAL.read_bytes()
    record = unpack_record(decode(ByteReader.of_bytes(data)), "model.mpk")
    wanted = build_metadata("NamedMpkFileRecorder", HalfPrecision)

    def as_maps(node):
        if isinstance(node, RawTensor):
            return bytes(node.data())
        if isinstance(node, dict):
            return {key: as_maps(value) for key, value in node.items()}
        return [as_maps(value) for value in node] if isinstance(node, list) else node

    assert msgpack.packb(as_maps(pack_record(record))) == data
    assert record.metadata.format == wanted.format
    assert (record.metadata.float, record.metadata.int) == (wanted.float, wanted.int)
    assert record.item["fc"]["weight"]["param"].shape == (64, 1)
