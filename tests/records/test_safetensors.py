"""Safetensors, compared with the reference implementation in both directions."""

import contextlib
import json
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import examples

from stages.contracts.errors import RecordError
from stages.records import dotted_names as flat
from stages.records import safetensors_format
from stages.records.byte_readers import ByteReader
from stages.records.record_tree import ITEM_SIZES, Map, Metadata, RawTensor, Record, Signed, Some, Variant

METADATA = Metadata("f32", "i32", "NamedMpkFileRecorder", "0.21.0", "FullPrecisionSettings")
TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    **{
        f"{kind[0].upper()}{bits}": getattr(torch, f"{kind}{bits}")
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    "Bool": torch.bool,
}


def tensor(dtype="F32", shape=(2,), fill=1):
    size = ITEM_SIZES[dtype]
    for length in shape:
        size *= length
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
    if isinstance(node, float):
        return ("float", "nan" if node != node else struct.pack("<d", node))
    return (type(node).__name__, node)


def written(record):
    return b"".join(safetensors_format.encode(record))


def read(data, **options):
    source = ByteReader.of_bytes(data)
    record = safetensors_format.decode(source, **options)
    source.finish()
    return record


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def at(start, end, *, dtype="F32", shape=(1,), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end], **more}


TENSORS = st.builds(
    tensor,
    st.sampled_from(sorted(TORCH)),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.integers(0, 1),
)
KEYS = st.text(st.characters(exclude_characters=".\0", codec="utf-8"), min_size=1, max_size=4).filter(
    lambda key: not key.isdigit()
)
TEXT_KEYS = st.one_of(KEYS, st.sampled_from(["$tensor", "$dict", "$x", "id", "param"]))
PARAMETERS = st.builds(lambda name, param: {"id": name, "param": param}, st.text(max_size=5), TENSORS)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers().map(Signed),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
TREES = st.recursive(
    st.one_of(SCALARS, TENSORS, PARAMETERS),
    lambda inner: st.one_of(
        st.dictionaries(TEXT_KEYS, inner, max_size=4),
        st.dictionaries(TEXT_KEYS, inner, max_size=4).map(Map),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        inner.map(Some),
        st.builds(Variant, KEYS, st.integers(0, 5), inner),
    ),
    max_leaves=12,
)
RECORDS = st.builds(
    lambda item, metadata, extra: Record(item, metadata, extra or None),
    st.one_of(SCALARS, st.dictionaries(KEYS, TREES, max_size=5)),
    st.sampled_from([None, METADATA]),
    st.dictionaries(KEYS.filter(lambda key: key != "burn"), st.text(max_size=5), max_size=3),
)


@given(RECORDS)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_record_is_restored_completely(record):
    found = read(written(record))

    assert comparable(found.item) == comparable(record.item)
    assert (found.metadata, found.extra) == (record.metadata, record.extra)
    assert written(found) == written(record)


@given(RECORDS, st.data())
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_corrupt_file_is_refused_or_read(record, data):
    content = bytearray(written(record))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(RecordError):
        read(bytes(content))


@pytest.mark.parametrize("dtype", sorted(TORCH))
def test_reference_implementation_reads_written_file(dtype, tmp_path):
    item = {
        "fc": {"weight": {"id": "x", "param": tensor(dtype, (2, 3))}, "bias": None},
        "list": [tensor(dtype, ())],
    }
    path = tmp_path / "a.safetensors"
    path.write_bytes(written(Record(item, METADATA, {"format": "pt"})))

    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == {"fc.weight", "list.0"}
    assert loaded["fc.weight"].dtype == TORCH[dtype]
    assert bytes(loaded["fc.weight"].view(torch.uint8).numpy()) == bytes(item["fc"]["weight"]["param"].data())
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt"


def test_reference_numpy_loader_reads_written_file():
    data = written(
        Record({"a": RawTensor.of("F32", (2,), struct.pack("<2f", 1, 2)), "b": tensor("Bool", (0, 3))})
    )

    loaded = safetensors.numpy.load(data)
    np.testing.assert_array_equal(loaded["a"], np.float32([1, 2]))
    assert loaded["b"].shape == (0, 3)


@given(
    st.dictionaries(
        KEYS.filter(lambda key: key != "__metadata__"),
        st.tuples(st.sampled_from(sorted(TORCH)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=6,
    ),
    st.dictionaries(KEYS.filter(lambda key: key != "burn"), st.text(max_size=5), max_size=2),
)
@settings(max_examples=examples(100), deadline=None)
def test_file_of_reference_implementation_is_read(named, texts):
    tensors = {name: torch.ones(shape).to(TORCH[dtype]) for name, (dtype, shape) in named.items()}

    record = read(safetensors.torch.save(tensors, texts or None))
    assert record.extra == (texts or None)
    assert record.metadata is None
    found = {name: (raw.dtype, list(raw.shape), bytes(raw.data())) for name, raw in record.item.items()}
    assert found == {
        name: (*named[name], bytes(value.reshape(-1).view(torch.uint8).numpy()))
        for name, value in tensors.items()
    }


def test_bytes_equal_those_of_the_reference_implementation():
    item = {f"é{name}": tensor(name, (1,)) for name in TORCH} | {"b": tensor(), "a\n": tensor()}
    ours = written(Record(item))

    kept = json.loads(ours[8 : 8 + int.from_bytes(ours[:8], "little")])["__metadata__"]
    tensors = {
        name: torch.frombuffer(bytearray(raw.data()), dtype=TORCH[raw.dtype]) for name, raw in item.items()
    }
    assert ours == safetensors.torch.save(tensors, kept)


def test_dotted_names_of_other_programs_become_a_tree():
    data = safetensors.torch.save(
        {"layers.1.w": torch.ones(1), "layers.0.w": torch.ones(2), "b": torch.ones(3)}
    )

    item = read(data).item
    assert [layer["w"].shape for layer in item["layers"]] == [(2,), (1,)]
    assert item["b"].shape == (3,)


def test_parameter_is_named_by_its_path():
    data = written(Record({"fc": {"weight": {"id": "abc", "param": tensor()}}}, METADATA))

    assert safetensors.torch.load(data).keys() == {"fc.weight"}


def test_flex32_is_stored_as_f32():
    assert read(written(Record({"a": tensor("Flex32")}))).item["a"].dtype == "F32"


def test_tensor_read_without_data_has_only_a_shape():
    found = read(written(Record({"a": tensor("F32", (2, 3))})), keep_data=False).item["a"]

    assert found.shape == (2, 3)
    with pytest.raises(RecordError, match="without its data"):
        found.data()


def test_truncated_file_is_refused_at_every_length():
    record = Record({"a": tensor("F16"), "b": [None, 1.5, tensor("Bool")], "c": "x"}, METADATA, {"k": "v"})
    for data in (written(record), safetensors.torch.save({"a": torch.ones(2), "b.c": torch.ones(1)})):
        for end in range(len(data)):
            with pytest.raises(RecordError):
                read(data[:end])


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": at(0, 4), "b": at(0, 4)}, bytes(8), "expected 4 because gaps"),
        ({"a": at(0, 4), "b": at(2, 6)}, bytes(8), "expected 4 because gaps"),
        ({"a": at(4, 8)}, bytes(8), "expected 0 because gaps"),
        ({"a": at(0, 4), "b": at(8, 12)}, bytes(12), "expected 4 because gaps"),
        ({"a": at(0, 4)}, bytes(8), "after the end of the record"),
        ({"a": at(0, 4)}, bytes(3), "take 4 bytes, but 3 remain"),
        ({"a": at(0, 2**63, shape=[2**61])}, bytes(3), "remain"),
        ({"a": at(4, 0)}, bytes(4), "takes 4 bytes"),
        ({"a": at(0, 8)}, bytes(8), "takes 4 bytes"),
        ({"a": at(0, -4)}, bytes(8), "non-negative integers"),
        ({"a": at(0, 4.0)}, bytes(8), "non-negative integers"),
        ({"a": at(0, True, dtype="U8")}, bytes(8), "non-negative integers"),
        ({"a": at(0, 4, shape=[-1])}, bytes(8), "non-negative integers"),
        ({"a": at(0, 0, shape=[2**62, 2**62])}, b"", "elements or more"),
        ({"a": at(0, 0, shape=[0, 2**63])}, b"", "elements or more"),
        ({"a": at(0, 4, shape=[1] * 33)}, bytes(4), "33 dimensions"),
        ({"a": at(0, 4, dtype="F8_E4M3", shape=[4])}, bytes(4), "the dtype 'F8_E4M3'; supported"),
        ({"a": at(0, 4, dtype="F4")}, bytes(4), "the dtype 'F4'; supported"),
        ({"a": at(0, 4, dtype=["F32"])}, bytes(4), "the dtype ['F32']; supported"),
        ({"a": at(0, 4, more=1)}, bytes(4), "must have exactly a dtype"),
        ({"a": [0]}, b"", "must have exactly a dtype"),
        ({"a": at(0, 1, dtype="BOOL")}, b"\2", "contains 2; expected only 0 and 1"),
        ({"": at(0, 4)}, bytes(4), "text without a NUL"),
        ({"a..b": at(0, 4)}, bytes(4), "text without a NUL"),
        ({"a\0": at(0, 4)}, bytes(4), "text without a NUL"),
        ({"\ud800": at(0, 4)}, bytes(4), "not valid Unicode"),
        ({"a": at(0, 4), "a.b": at(4, 8)}, bytes(8), "only one of them can exist"),
        ({"__metadata__": {"a": 1}}, b"", "map names to texts"),
        ({"__metadata__": []}, b"", "map names to texts"),
        (b'{"a":{},"a":{}}', b"", "duplicate name"),
        (b'{"a":{"dtype":"F32","dtype":"F32"}}', b"", "duplicate name"),
        (b"[]", b"", "not with '{'"),
        (b' {"a":1}', b"", "not with '{'"),
        (b"", b"", "not with '{'"),
        (b"{", b"", "not valid JSON"),
        (b"{}x", b"", "not valid JSON"),
        (b'{"a":NaN}', b"", "is not JSON"),
        (b'{"a":' + b"1" * 5000 + b"}", b"", "not valid JSON"),
        (b'{"a":"\xff"}', b"", "not valid JSON"),
        (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b"", "nested too deep"),
        (b'{"a":' + b"[],[" * 600_000, b"", "at most 650000"),
    ],
)
def test_content_that_the_reference_would_not_write_is_refused(header, data, message):
    with pytest.raises(RecordError) as raised:
        read(file_of(header, data))

    assert message in str(raised.value)


def test_header_beyond_the_limit_is_refused_unread():
    with pytest.raises(RecordError, match="at most 100000000"):
        read((100_000_001).to_bytes(8, "little") + b"{}")
    with pytest.raises(RecordError, match="255 bytes are declared"):
        read((255).to_bytes(8, "little") + b"{}")


def kept(item, metadata=None):
    return json.dumps({"metadata": metadata, "item": item})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "a record's metadata and item"),
        ('{"item":1}', "a record's metadata and item"),
        (kept({}), "the tensor 'a', which its tree does not reference"),
        (kept([{"$tensor": "a"}, {"$tensor": "a"}]), "a tensor twice"),
        (kept([{"$tensor": "b"}]), "invalid '$tensor'"),
        (kept([{"$tensor": ["a"]}]), "invalid '$tensor'"),
        (kept({"$param": ["a"]}), "invalid '$param'"),
        (kept({"$param": ["a", 1]}), "invalid '$param'"),
        (kept({"$variant": ["a", "b", {"$tensor": "a"}]}), "invalid '$variant'"),
        (kept({"$tuple": 1}), "invalid '$tuple'"),
        (kept({"$map": []}), "invalid '$map'"),
        (kept({"$float": 1}), "invalid '$float'"),
        (kept({"$float": "1e5"}), "invalid '$float'"),
        (kept({"$signed": 1.5}), "invalid '$signed'"),
        (kept({"$bytes": "?"}), "invalid '$bytes'"),
        (kept({"$other": 1}), "invalid '$other'"),
        (kept({"a..b": {"$tensor": "a"}}), "'..' or a NUL"),
        (kept({"a\0": {"$tensor": "a"}, "b": 1}), "'..' or a NUL"),
        (kept("\ud800"), "not valid Unicode"),
        ('{"metadata":null,"item":' + "[" * 200 + "]" * 200 + "}", "deeper than 128"),
        (kept({"$tensor": "a"}, {"float": "f32"}), "the texts float, int, format, version, settings"),
        (
            kept({"$tensor": "a"}, dict.fromkeys(("float", "int", "format", "version", "settings"), 1)),
            "map names to texts",
        ),
        ('{"metadata":null,"item":1,"item":2}', "duplicate name"),
    ],
)
def test_skeleton_that_does_not_match_its_tensors_is_refused(text, message):
    header = {"__metadata__": {"burn": text}, "a": at(0, 4)}

    with pytest.raises(RecordError) as raised:
        read(file_of(header, bytes(4)))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(tensor()), "cannot be named"),
        (Record({"a.b": tensor()}), "without a dot"),
        (Record({"": tensor()}), "text without a NUL"),
        (Record({"__metadata__": tensor()}), "rename it"),
        (Record({}, extra={"burn": "x"}), "rename it"),
        (Record({"a": [tensor()], "b": object()}), "b has the type object"),
        (Record({1: tensor()}), "keys must be text"),
        (Record({"a": "\ud800"}), "not valid Unicode"),
        (Record({"a": Some(tensor()), "b": RawTensor("F32", (1,), lambda: ())}), "its data has 0"),
    ],
)
def test_unsupported_value_is_refused_on_write(record, message):
    with pytest.raises(RecordError) as raised:
        written(record)

    assert message in str(raised.value)


def test_tree_deeper_than_128_levels_is_refused():
    item = {"a": None}
    for _ in range(flat.MAX_DEPTH):
        item = {"a": item}

    with pytest.raises(RecordError, match="deeper than 128"):
        written(Record(item))
