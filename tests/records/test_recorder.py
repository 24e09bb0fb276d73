"""State as files."""

import gzip

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts.errors import ParamsError, RecordError
from stages.contracts.files import written_whole
from stages.records import HalfPrecision, NamedMpkGzFileRecorder, named
from stages.records.messagepack import DTYPES

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
)
trees = st.recursive(scalars, lambda each: st.lists(each) | st.dictionaries(st.text(), each))


@settings(max_examples=50)
@given(tree=trees)
def test_every_tree_comes_back(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "item"

    NamedMpkGzFileRecorder().record(tree, path)

    assert NamedMpkGzFileRecorder().load(path) == tree


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_every_tensor_comes_back_bit_for_bit(dtype, shape, tmp_path):
    tensor = torch.randint(0, 2, shape).to(dtype)

    NamedMpkGzFileRecorder().record({"t": tensor}, tmp_path / "item")
    back = NamedMpkGzFileRecorder().load(tmp_path / "item.mpk.gz")["t"]

    assert back.dtype == dtype
    assert back.shape == shape
    assert torch.equal(back, tensor)


def test_a_tensor_that_is_a_view_is_written_row_major(tmp_path):
    tensor = torch.arange(6.0).reshape(2, 3).T

    NamedMpkGzFileRecorder().record(tensor, tmp_path / "item")

    assert torch.equal(NamedMpkGzFileRecorder().load(tmp_path / "item"), tensor)


def test_the_same_tree_is_the_same_bytes_with_no_time_in_them(tmp_path):
    first = NamedMpkGzFileRecorder().record({"a": torch.ones(9)}, tmp_path / "one").read_bytes()
    second = NamedMpkGzFileRecorder().record({"a": torch.ones(9)}, tmp_path / "other").read_bytes()

    assert first == second
    assert first[4:8] == bytes(4)


def test_the_container_is_burns(tmp_path):
    path = NamedMpkGzFileRecorder().record({"weight": torch.tensor([1.5])}, tmp_path / "model")

    content = msgpack.unpackb(gzip.decompress(path.read_bytes()))

    assert list(content) == ["metadata", "item", "_b"]
    assert list(content["metadata"]) == ["float", "int", "format", "version", "settings"]
    assert content["item"] == {"weight": {"bytes": b"\0\0\xc0\x3f", "shape": [1], "dtype": "F32"}}
    assert content["_b"] == []


def test_half_precision_halves_floats_and_leaves_integers(tmp_path):
    NamedMpkGzFileRecorder(HalfPrecision).record([torch.ones(2), torch.ones(2).long()], tmp_path / "half")

    floats, integers = NamedMpkGzFileRecorder().load(tmp_path / "half")

    assert (floats.dtype, integers.dtype) == (torch.float16, torch.int64)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no gzip", "no gzip file"),
        (gzip.compress(msgpack.packb({"metadata": {}, "item": 1}))[:-4], "cut short"),
        (gzip.compress(msgpack.packb({"metadata": {}, "item": 1})) + b"\0", "goes on for 1 bytes"),
        (gzip.compress(b"\x82"), "no whole MessagePack value"),
        (gzip.compress(msgpack.packb({"metadata": {}, "item": 1}) + b"\0"), "no whole MessagePack value"),
        (gzip.compress(msgpack.packb([1])), "no record"),
        (gzip.compress(b"\x82\xa1a\x01\xa1a\x02"), "names a key twice"),
        (
            gzip.compress(msgpack.packb({"bytes": b"", "shape": [1], "dtype": "F32"})),
            "holds 0 bytes instead of 4",
        ),
        (gzip.compress(msgpack.packb({"bytes": b"", "shape": [-1], "dtype": "F32"})), r"shape \[-1\]"),
        (gzip.compress(msgpack.packb({"bytes": b"", "shape": [0], "dtype": "F31"})), "unknown dtype 'F31'"),
    ],
)
def test_a_file_that_is_no_record_says_what_is_wrong(content, words, tmp_path):
    (tmp_path / "bad.mpk.gz").write_bytes(content)

    with pytest.raises(RecordError, match=words):
        NamedMpkGzFileRecorder().load(tmp_path / "bad")


def test_what_would_need_code_to_be_read_is_not_written(tmp_path):
    with pytest.raises(RecordError, match="a object cannot be recorded"):
        NamedMpkGzFileRecorder().record({"a": object()}, tmp_path / "item")

    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    with pytest.raises(OSError, match="full"), written_whole(path) as file:
        file.write(b"new")
        raise OSError("full")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unknown_recorder_names_those_there_are():
    with pytest.raises(ParamsError, match="'compat'.*default, compact.*Did you mean 'compact'"):
        named("compat")


@pytest.mark.parametrize("key", [0, None, b"a"])
def test_a_key_that_is_no_text_is_not_written(key, tmp_path):
    with pytest.raises(RecordError, match=f"key {key!r} is no text"):
        NamedMpkGzFileRecorder().record({"a": [{key: 1}]}, tmp_path / "item")

    assert list(tmp_path.iterdir()) == []


def test_a_tensor_of_no_dtype_of_burns_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(RecordError, match=r"complex64 cannot be recorded, only of torch.float64, .*bool"):
        NamedMpkGzFileRecorder().record({"a": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "item")
