"""The listing of a record, the comparison of two, and the conversion to another format."""

import json
import math

import numpy as np
import pytest

from stages.records.formats import FORMATS
from stages.records.precision import DoublePrecision, HalfPrecision
from stages.records.record_tree import Map, Metadata, RawTensor, Record, Signed, Some, Variant
from stages.records.tools.conversion import add_types, convert_record, find_lossy_tensors
from stages.records.tools.diff import distance, find_differences
from stages.records.tools.listing import describe, escape, list_entries, to_rows, totals

OLD = Metadata("f32", "i32", "…", "0.13.2", "FullPrecisionSettings")


def tensor(values, kind="<f4", dtype="F32"):
    array = np.array(values, kind)
    return RawTensor.of(dtype, array.shape, array.tobytes())


def module(bias=(1.0, 2.0)):
    weight = {"id": "abcdefghijklm", "param": tensor([[1, 2, 3], [4, 5, 6]])}
    return {"fc": {"weight": weight, "bias": tensor(bias), "size": None}, "rate": 0.5, "stride": [None, None]}


def test_parameter_and_its_id_are_one_entry():
    entry = list_entries(module())
    rows = {row["path"]: row for row in to_rows(entry, constants=False)}

    assert rows["fc.weight"] == {
        "path": "fc.weight",
        "dtype": "F32",
        "shape": [2, 3],
        "bytes": 24,
        "id": "abcdefghijklm",
    }
    assert list(rows) == ["fc.weight", "fc.bias", "rate"]
    assert "fc.size" in {row["path"] for row in to_rows(entry, constants=True)}
    assert (totals(entry).tensors, totals(entry).parameters, totals(entry).nbytes) == (2, 6, 32)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (tensor([1.0]), "F32 [1]"),
        ({}, "empty"),
        (None, "nil"),
        (list(range(9)), "9 values"),
        ([1, "a"], '[1, "a"]'),
        (b"abc", "3 bytes"),
        ("\x1b[2Jx", '"\\x1b[2Jx"'),
        (Some(3), "3"),
    ],
)
def test_value_is_described_briefly(value, text):
    assert describe(list_entries(value)) == text


def test_control_characters_are_escaped():
    assert escape("a\x1b[1mb\n\u202ec é") == "a\\x1b[1mb\\n\\u202ec é"


def test_values_that_json_lacks_are_text():
    rows = to_rows(list_entries({"a": math.nan, "b": [1.0, math.inf], "c": b"12"}), constants=False)

    assert [row["value"] for row in rows] == ["NaN", [1.0, "inf"], "2 bytes"]
    assert json.dumps(rows, allow_nan=False)


def test_equal_trees_do_not_differ_despite_other_markers():
    other = module() | {"stride": (None, None), "rate": 0.5}
    other["fc"]["weight"]["id"] = "another"
    del other["fc"]["size"]

    assert not list(find_differences(module(), other))
    (found,) = find_differences(module(), other, ids=True)
    assert (found.path, found.what) == ("fc.weight.id", "value")


@pytest.mark.parametrize(
    ("first", "second", "what", "largest"),
    [
        ({"a": tensor([1.0])}, {}, "only in the first", None),
        ({}, {"a": 3}, "only in the second", None),
        ({"a": tensor([1.0])}, {"a": 1.0}, "kind", None),
        ({"a": "x"}, {"a": "y"}, "value", None),
        ({"a": 3}, {"a": 5}, "value", 2),
        ({"a": tensor([1, 2])}, {"a": tensor([[1, 2]])}, "shape", None),
        ({"a": tensor([1, 2])}, {"a": tensor([1, 2], "<f2", "F16")}, "dtype", 0),
        ({"a": tensor([1, 2])}, {"a": tensor([1, 2.5])}, "value", 0.5),
        ({"a": tensor([np.nan, 2])}, {"a": tensor([1, 2])}, "value", math.inf),
        ({"a": tensor([np.inf])}, {"a": tensor([-np.inf])}, "value", math.inf),
        ({"a": tensor([2**60], "<i8", "I64")}, {"a": tensor([2**60 + 1], "<i8", "I64")}, "value", 1),
        ({"a": tensor([-(2**63)], "<i8", "I64")}, {"a": tensor([2**63 - 1], "<i8", "I64")}, "value", 2.0**64),
    ],
)
def test_each_kind_of_difference_is_reported(first, second, what, largest):
    (found,) = find_differences(first, second)

    assert (found.path, found.what, found.largest) == ("a", what, largest)


def test_parameter_is_compared_with_bare_tensor_of_same_name():
    bare = module() | {"fc": {"weight": tensor([[1, 2, 3], [4, 5, 7]]), "bias": tensor([1.0, 2.0])}}

    (found,) = find_differences(module(), bare)

    assert (found.path, found.what, found.largest) == ("fc.weight", "value", 1)


def test_nan_equals_nan_and_tolerance_is_respected():
    first, second = {"a": tensor([np.nan, np.inf, 1.0])}, {"a": tensor([np.nan, np.inf, 1.25])}

    assert not list(find_differences(first, first))
    assert not list(find_differences(first, second, tolerance=0.25))
    assert len(list(find_differences(first, second, tolerance=0.24))) == 1


def test_bfloat16_is_compared_by_value():
    ones, twos = tensor([0x3F80], "<u2", "BF16"), tensor([0x4000], "<u2", "BF16")

    assert distance(ones, twos) == (1.0, 0.5)
    assert distance(ones, tensor([1.0])) == (0.0, 0.0)


def test_tensor_in_pieces_is_compared_as_one():
    data = np.arange(600_000, dtype="<f4")
    raw = memoryview(data.tobytes())
    cut = RawTensor("F32", (600_000,), lambda: (raw[:3], raw[3:1_000_001], raw[1_000_001:]))
    data[-1] += 4

    assert distance(cut, tensor(data))[0] == 4


def test_converted_metadata_names_new_format():
    converted = convert_record(Record(module(), OLD), FORMATS["named_mpk"], HalfPrecision).metadata

    assert converted.format.startswith("burn_core::record::file::NamedMpkFileRecorder<")
    assert (converted.float, converted.settings) == ("half::binary16::f16", "HalfPrecisionSettings")
    assert converted.version == "0.21.0"  # before 0.14 tensors had another layout


def test_record_without_metadata_gets_precision_of_its_floats():
    item = {"a": tensor([1.0, 2.0], "<f2", "F16")}

    assert convert_record(Record(item), FORMATS["named_mpk"]).metadata.float == "half::binary16::f16"


def test_only_tensors_that_lose_bits_are_lossy():
    item = {"a": tensor([1.0]), "b": tensor([1.0], "<f2", "F16"), "c": tensor([1], "<i8", "I64")}

    assert find_lossy_tensors(Record(item), HalfPrecision) == ["a"]
    assert not find_lossy_tensors(Record(item), DoublePrecision)


def test_example_adds_types_to_record_with_names():
    like = {
        "state": Map(
            {"x": Variant("V1", 0, {"time": Signed(0), "more": Some(tensor([1.0])), "less": Some(1)})}
        ),
        "stride": (None, None),
    }
    more = tensor([2.0])

    converted = add_types({"state": {"y": {"V1": {"time": 3, "more": more}}}, "stride": [None, None]}, like)

    assert isinstance(converted["state"], Map)
    inner = converted["state"]["y"]
    assert (inner.name, inner.index) == ("V1", 0)
    assert isinstance(inner.value["time"], Signed)
    assert inner.value["more"].value is more
    assert inner.value["less"] is None
    assert converted["stride"] == (None, None)
