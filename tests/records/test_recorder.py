"""Files of state: every recorder, precision and dtype, and loading any file into any module."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import covering_cases, examples
from pydantic import ValidationError
from torch import nn

from stages.contracts.errors import RecordError
from stages.records import (
    BinBytesRecorder,
    CompactRecorder,
    DefaultRecorder,
    DoublePrecision,
    FullPrecision,
    HalfPrecision,
    NamedMpkBytesRecorder,
    NamedMpkGzFileRecorder,
    OriginalPrecision,
    RecorderConfig,
    build_recorder,
    from_plain,
    load_into,
    module_supplement,
    read_item,
    record_of,
    skeleton_of,
    to_plain,
    write_state_dict,
)
from stages.records.recorder import PRECISIONS, RECORDERS
from stages.records.tensors import TORCH_DTYPES

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
)
keys = st.text().filter(lambda key: ".." not in key and "\0" not in key)
trees = st.recursive(scalars, lambda each: st.lists(each) | st.dictionaries(keys, each))
FLOATS = {"full": torch.float32, "half": torch.float16, "double": torch.float64}
INTEGERS = {"full": torch.int32, "half": torch.int16, "double": torch.int64}
MODULES = {
    "linear": lambda: nn.Linear(3, 2),
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.Dropout(0.1)),
    "norms": lambda: nn.ModuleDict({"a": nn.LayerNorm(4), "b": nn.GroupNorm(2, 4, affine=False)}),
    "embedding": lambda: nn.Embedding(5, 3),
    "lstm": lambda: nn.LSTM(3, 4, batch_first=True),
    "gru": lambda: nn.GRU(3, 4),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8),
}


@settings(max_examples=examples(50))
@given(tree=trees)
def test_every_tree_is_restored(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "item"

    NamedMpkGzFileRecorder().record(tree, path)

    assert NamedMpkGzFileRecorder().load(path) == tree


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_every_tensor_is_restored_bit_for_bit(dtype, shape, tmp_path):
    tensor = torch.randint(0, 2, shape).to(dtype)

    NamedMpkGzFileRecorder(OriginalPrecision).record({"t": tensor}, tmp_path / "item")
    back = NamedMpkGzFileRecorder().load(tmp_path / "item.mpk.gz")["t"]

    assert back.dtype == dtype
    assert back.shape == shape
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    ("dtype", "kind", "precision"), covering_cases(TORCH_DTYPES, RECORDERS, [*PRECISIONS], strength=1)
)
def test_every_recorder_writes_and_reads_its_precision(kind, precision, dtype, tmp_path):
    tensor = torch.randint(0, 2, (2, 3)).to(dtype)
    item = {"weight": tensor, "list": [tensor, tensor]}
    recorder = kind(PRECISIONS[precision])

    path = recorder.record(item, tmp_path / "item")
    back = recorder.load(path, from_plain(to_plain(item), "the example"))

    expected = tensor
    if tensor.is_floating_point():
        expected = tensor.to(FLOATS[precision])
    elif dtype is not torch.bool:
        expected = tensor.to(INTEGERS[precision])
    assert back["weight"].dtype == expected.dtype
    assert torch.equal(back["weight"], expected)
    assert torch.equal(back["list"][1], expected)


FLOAT_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize(
    ("make", "kind", "precision", "dtype"),
    covering_cases(MODULES, RECORDERS, [*PRECISIONS], FLOAT_DTYPES, strength=1),
)
def test_any_file_loads_into_a_module_of_any_dtype(make, kind, precision, dtype, tmp_path):
    source, target = make(), make().to(dtype)
    recorder = kind(PRECISIONS[precision])

    path = recorder.record(record_of(source), tmp_path / "model")
    example = from_plain(to_plain(record_of(target)), "the example")
    load_into(target, recorder.load(path, example), layout="burn")

    written = {
        name: each.to(FLOATS[precision]) if each.is_floating_point() else each
        for name, each in source.state_dict().items()
    }
    for name, each in target.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(each, written[name].to(each.dtype)), name


def test_full_precision_and_supplement_restore_every_bit(tmp_path):
    module = nn.Sequential(nn.Linear(3, 2).double(), nn.BatchNorm1d(2), nn.Linear(2, 2).bfloat16())
    module.register_buffer("big", torch.tensor([2**40]))
    path = DefaultRecorder().record(record_of(module), tmp_path / "model")
    NamedMpkGzFileRecorder(OriginalPrecision).record(module_supplement(module), tmp_path / "supplement")

    other = nn.Sequential(nn.Linear(3, 2).double(), nn.BatchNorm1d(2), nn.Linear(2, 2).bfloat16())
    other.register_buffer("big", torch.tensor([0]))
    load_into(other, read_item(str(path)), layout="burn")
    other.load_state_dict({**other.state_dict(), **read_item(tmp_path / "supplement.mpk.gz")})

    for name, each in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], each), name


def test_equal_trees_are_written_as_equal_bytes(tmp_path):
    first = NamedMpkGzFileRecorder().record({"a": torch.ones(9)}, tmp_path / "one").read_bytes()
    second = NamedMpkGzFileRecorder().record({"a": torch.ones(9)}, tmp_path / "other").read_bytes()

    assert first == second
    assert first[4:8] == bytes(4)


@pytest.mark.parametrize("recorder", [NamedMpkBytesRecorder(), BinBytesRecorder(HalfPrecision)])
def test_record_in_memory_is_restored(recorder):
    item = {"weight": torch.ones(2, 3), "count": 7}

    back = recorder.load(recorder.record(item), from_plain(to_plain(item), "the example"))

    assert back["weight"].sum() == 6
    assert back["count"] == 7


def test_bytes_after_a_record_in_memory_are_refused():
    data = NamedMpkBytesRecorder().record({"a": 1})

    with pytest.raises(RecordError, match="has 1 surplus bytes after the end"):
        NamedMpkBytesRecorder().load(data + b"\0")


@pytest.mark.parametrize(
    ("value", "kind", "precision"),
    [
        ("default", "named_mpk_gz", FullPrecision),
        ("compact", "named_mpk_gz", HalfPrecision),
        ("bin", "bin", FullPrecision),
        ({"kind": "pretty_json", "precision": "double"}, "pretty_json", DoublePrecision),
        ({"kind": "default", "precision": "half"}, "named_mpk_gz", HalfPrecision),
    ],
)
def test_params_select_a_recorder(value, kind, precision):
    recorder = build_recorder(RecorderConfig.model_validate(value))

    assert (recorder.form.name, recorder.precision) == (kind, precision)


def test_unknown_recorder_is_refused():
    with pytest.raises(ValidationError):
        RecorderConfig.model_validate("pickle")


def test_burn_names_of_recorders_are_available():
    assert DefaultRecorder().suffix == ".mpk.gz"
    assert CompactRecorder().precision is HalfPrecision


def test_exported_state_dict_is_read_by_safetensors_and_read_item(tmp_path):
    from safetensors.torch import load_file

    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    path = tmp_path / "model.safetensors"
    write_state_dict(module.state_dict(), path)

    theirs, ours = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), nn.Sequential(nn.Linear(3, 2))
    theirs.load_state_dict(load_file(path))
    ours.append(nn.BatchNorm1d(2))
    load_into(ours, read_item(path))

    for name, each in module.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], each)
        assert torch.equal(ours.state_dict()[name], each)


def test_skeleton_is_stored_as_plain_values():
    tree = skeleton_of(nn.LSTM(2, 3))

    assert from_plain(to_plain(tree), "here") == tree
