"""States of Python objects as trees that every record can hold."""

import enum
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch

from stages.contracts.errors import RecordError
from stages.records import NamedMpkGzFileRecorder, OriginalPrecision, decode_state, encode_state

EXACT = {
    "numbers": [1, -2.5, True, None, 2**80, float("inf"), "text", b"bytes"],
    "tuples": [(), (1, (2, [3])), torch.Size([2, 3])],
    "deques": [deque([1, (2,)], maxlen=3), deque()],
    "sets": [set(), {"b", "a", 1}, frozenset({(1, 2)})],
    "by index": {0: torch.arange(3), -1: [torch.tensor(2.0), "text"], (1, "a"): {}},
    "dicts": [OrderedDict(b=1, a=2), Counter({3: 2}), defaultdict(list, {"a": [1]}), defaultdict(None, {})],
    "scalars": [np.float32(0.1), np.float64(0.1), np.int8(-3), np.bool_(1), np.str_("ä"), np.complex64(1j)],
    "arrays": [np.arange(6, dtype="<i2").reshape(2, 3)[:, ::2], np.zeros((0, 2)), np.array(["a", "bc"])],
    "times": np.array(["2026-01-02"], "M8[D]"),
    "dtype": torch.bfloat16,
    "names of a tensor's parts": {"bytes": b"ab", "shape": [2], "dtype": "U8"},
    "nested": [[], {"$tuple": 1, "": ()}, {"$array": {"$deque": 2}}],
}


def describe(node):
    """Return *node* as text, with the types and the bits of everything in it."""
    if isinstance(node, torch.Tensor):
        return f"tensor {node.dtype} {node.tolist()}"
    if isinstance(node, np.ndarray | np.generic):
        return f"{type(node)} {node.dtype} {node.tolist()!r}"
    if isinstance(node, dict):
        extra = getattr(node, "default_factory", "")
        return f"{type(node)} {extra} {[(describe(key), describe(value)) for key, value in node.items()]}"
    if isinstance(node, set | frozenset):
        return f"{type(node)} {sorted(map(describe, node))}"
    if isinstance(node, list | tuple | deque):
        return f"{type(node)} {getattr(node, 'maxlen', '')} {list(map(describe, node))}"
    return f"{type(node)} {node!r}"


@pytest.mark.parametrize("name", EXACT)
def test_state_is_restored_from_a_file_with_its_types(name, tmp_path):
    recorder = NamedMpkGzFileRecorder(OriginalPrecision)
    recorder.record({"state": encode_state(EXACT[name], "it")}, tmp_path / "state")

    restored = decode_state(recorder.load(tmp_path / "state")["state"])

    assert describe(restored) == describe(EXACT[name])


def test_restored_array_can_be_changed():
    restored = decode_state(encode_state(np.zeros(2), "it"))

    restored += 1

    assert restored.tolist() == [1, 1]


def test_state_that_is_not_encoded_is_restored_as_it_is():
    """Earlier versions stored the states of optimizers and schedulers without `encode_state`."""
    saved = {"betas": [0.9, 0.99], "by index": {"0": 1, "x": None}, "empty": {}}

    assert decode_state(saved) == saved


class Color(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")  # noqa: PYI024  a plain one


def nested(depth):
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "it['a'] is of the type object"),
        (iter([]), "it['a'] is of the type list_iterator"),
        (lambda: 1, "it['a'] is of the type function"),
        (Color.RED, f"it['a'] is of the type {__name__}.Color"),
        (Point(1, 2), f"it['a'] is of the type {__name__}.Point"),
        ([1, {"b": 2j}], "it['a'][1]['b'] is of the type complex"),
        ({1: {2: object()}}, "it['a'][1][2] is of the type object"),
        ({object(): 1}, "a key of it['a'] is of the type object"),
        (np.array([object()]), "it['a'] is of the type numpy.ndarray"),
        (np.ma.masked_array([1], [True]), "it['a'] is of the type numpy.ma"),
        (defaultdict(lambda: 1), "it['a'] is of the type collections.defaultdict"),
        (torch.nn.Linear(1, 1), "it['a'] is of the type torch.nn.modules.linear.Linear"),
        (torch.Generator(), "it['a'] is of the type torch._C.Generator"),
        (torch.ones(2, dtype=torch.complex64), "it['a'] is a tensor of torch.complex64"),
        (torch.eye(2).to_sparse(), "it['a'] is a tensor of layout torch.sparse_coo"),
        (nested(40), "is nested deeper than 32 levels"),
    ],
)
def test_other_values_are_refused_with_their_place(value, place):
    with pytest.raises(RecordError) as caught:
        encode_state({"a": value}, "it")

    assert place in str(caught.value)


def test_sets_have_one_order_in_each_process():
    names = [f"name {number}" for number in range(50)]

    assert encode_state(set(names), "it") == {"$set": sorted(names, key=repr)}


@pytest.mark.parametrize(
    "tensor", [torch.ones(3, 2)[:1, 0], torch.ones(()).expand(1), torch.ones(4, 3, 2)[1:2, :1, ::2]]
)
def test_tensor_of_one_element_is_recorded_with_any_strides(tensor, tmp_path):
    recorder = NamedMpkGzFileRecorder(OriginalPrecision)

    path = recorder.record({"x": tensor}, tmp_path / "x")

    assert torch.equal(recorder.load(path)["x"], tensor)
