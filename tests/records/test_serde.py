"""The reference reader is correct: on a Burn file, and on content that Burn refuses."""

import copy
import gzip
import importlib.util
import json
from pathlib import Path

import msgpack
import pytest

SPEC = importlib.util.spec_from_file_location("serde_reader", Path(__file__).with_name("serde_reader.py"))
serde = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(serde)
Array, Float, Int, MapOf, Opt, Param = (
    serde.Array,
    serde.Float,
    serde.Int,
    serde.MapOf,
    serde.Opt,
    serde.Param,
)
CONSTANT, OptimizerState, Struct, Tensor = serde.CONSTANT, serde.OptimizerState, serde.Struct, serde.Tensor

REAL = Path(__file__).parents[3] / "shared" / "burn" / "model.mpk"
LINEAR = Struct(weight=Param(2), bias=Opt(Param(1)))
NORM = Struct(gamma=Param(1), beta=Param(1), epsilon=CONSTANT)
CELL = Struct(
    hidden_size=CONSTANT,
    weight_ih=LINEAR,
    weight_hh=LINEAR,
    norm_x=NORM,
    norm_h=NORM,
    norm_c=NORM,
    dropout=CONSTANT,
)
LSTM = Struct(layers=serde.Vec(CELL))
MODEL = Struct(stacked_lstm=LSTM, reverse_lstm=Opt(LSTM), dropout=CONSTANT, fc=LINEAR)


def tensor(*shape, dtype="F32", size=4):
    count = 1
    for length in shape:
        count *= length
    return {"bytes": bytes(count * size), "shape": list(shape), "dtype": dtype}


SMALL = Struct(fc=LINEAR, stride=Array(CONSTANT, 2), dropout=CONSTANT)


def small():
    metadata = {"float": "f32", "int": "i32", "format": "x", "version": "0.18.0", "settings": "y"}
    weight = {"id": "lrfckrk4a5oj6", "param": tensor(2, 3)}
    item = {"fc": {"weight": weight, "bias": None}, "stride": [None, None], "dropout": None}
    return {"metadata": metadata, "item": item, "_b": []}


@pytest.fixture
def file(tmp_path):
    def written(tree, name="model.mpk"):
        data = msgpack.packb(tree) if isinstance(tree, dict) else tree
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return written


@pytest.mark.skipif(not REAL.is_file(), reason=f"the real record {REAL} is not here")
def test_burn_file_is_read():
    model = serde.read(REAL, MODEL)

    assert len(model["stacked_lstm"]["layers"]) == len(model["reverse_lstm"]["layers"]) == 2
    assert model["fc"]["weight"].tensor.shape == (64, 1)
    assert model["fc"]["weight"].tensor.dtype == "F16"
    assert model["fc"]["bias"].id == "1nferte7ffol4"


@pytest.mark.skipif(not REAL.is_file(), reason=f"the real record {REAL} is not here")
def test_burn_file_is_not_read_as_another_module():
    with pytest.raises(serde.SerdeError, match="missing field `record.item.fc.scale`"):
        serde.read(REAL, Struct(fc=Struct(scale=Param(1))))
    with pytest.raises(serde.SerdeError, match="expected 1 dimensions"):
        serde.read(REAL, Struct(fc=Struct(weight=Param(1))))


def change(**places):
    """Changes to make: a dotted path, with ``__`` for the dots, to a value; `MISSING` takes the key away."""

    def made(tree):
        for place, value in places.items():
            *above, last = place.split("__") if place != "_b" else ["_b"]
            node = tree
            for key in above:
                node = node[key]
            node.pop(last) if value is serde.MISSING else node.__setitem__(last, value)
        return tree

    return made


def reordered(tree):
    return {key: tree[key] for key in ("_b", "item", "metadata")}


ACCEPTED = {
    "keys in another order": reordered,
    "nil for _b": change(_b=None),
    "more keys at the top": change(more=1),
    "more keys in a module": change(item__more={"a": [1]}),
    "other texts in the metadata": change(metadata__format="", metadata__version="9", metadata__float="?"),
    "a missing constant": change(item__dropout=serde.MISSING),
    "a constant with a value": change(item__dropout={"p": 0.5}),
    "a missing option": change(item__fc__bias=serde.MISSING),
    "half precision": change(item__fc__weight__param=tensor(2, 3, dtype="F16", size=2)),
    "an id of 0.14": change(item__fc__weight__id="5kmiqb9d5k"),
    "a UUID": change(item__fc__weight__id="30b82c23-788d-4d63-a743-ada258d5f13c"),
    "bytes as numbers": change(item__fc__weight__param__bytes=[0] * 24),
    "trailing bytes": lambda tree: msgpack.packb(tree) + b"\xc1\xc1",
}
REFUSED = {
    "no _b": change(_b=serde.MISSING),
    "a map for _b": change(_b={}),
    "something in _b": change(_b=[1]),
    "no metadata": change(metadata=serde.MISSING),
    "a missing metadata key": change(metadata__int=serde.MISSING),
    "a number in the metadata": change(metadata__int=32),
    "no item": change(item=serde.MISSING),
    "a missing parameter": change(item__fc__weight=serde.MISSING),
    "nil for a parameter": change(item__fc__weight=None),
    "a parameter without id": change(item__fc__weight__id=serde.MISSING),
    "an invalid id": change(item__fc__weight__id="no id"),
    "a tensor without dtype": change(item__fc__weight__param__dtype=serde.MISSING),
    "an invalid dtype": change(item__fc__weight__param__dtype="float32"),
    "a bool for floats": change(item__fc__weight__param=tensor(2, 3, dtype="Bool", size=1)),
    "too few bytes": change(item__fc__weight__param__bytes=bytes(23)),
    "another rank": change(item__fc__weight__param__shape=[6]),
    "a negative shape": change(item__fc__weight__param__shape=[-2, -3]),
    "a tensor of 0.13": change(item__fc__weight__param={"value": [0.0] * 6, "shape": [2, 3]}),
    "an array that is too short": change(item__stride=[None]),
    "an array that is too long": change(item__stride=[None] * 3),
    "a key twice": lambda _: b"\x82\xa1a\x01\xa1a\x02",
    "half a file": lambda tree: msgpack.packb(tree)[:-1],
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("suffix", [".mpk", ".mpk.gz"])
def test_content_that_burn_accepts_is_read(name, suffix, file):
    assert serde.read(file(ACCEPTED[name](small()), f"model{suffix}"), SMALL)["fc"][
        "weight"
    ].tensor.shape == (2, 3)


@pytest.mark.parametrize("name", REFUSED)
def test_content_that_burn_refuses_is_refused(name, file):
    with pytest.raises(serde.SerdeError):
        serde.read(file(REFUSED[name](small())), SMALL)


def test_json_is_read_by_the_same_rules(file):
    tree = copy.deepcopy(small())
    tree["_b"] = None
    weight = tree["item"]["fc"]["weight"]["param"]
    weight["bytes"] = list(weight["bytes"])

    assert serde.read(file(json.dumps(tree).encode(), "model.json"), SMALL)["fc"]["bias"] is None
    assert serde.read(file(json.dumps(tree).encode(), "model.json.gz"), SMALL)["dropout"] is None


def test_optimizer_states_are_read_by_parameter_id(file):
    """An int stands for a float, and never the other way."""
    momentum = {"time": 3, "moment_1": tensor(2, 3), "moment_2": tensor(2, 3)}
    tree = small()
    tree["item"] = {"lrfckrk4a5oj6": {"V1": {"Rank2": {"momentum": momentum}}}}

    def adam(rank):
        return Struct(momentum=Struct(time=Int(), moment_1=Tensor(rank), moment_2=Tensor(rank)))

    states = serde.read(file(tree), OptimizerState(adam))

    assert states["lrfckrk4a5oj6"]["Rank2"]["momentum"]["time"] == 3
    assert serde.read(file({**tree, "item": 3}), Float()) == 3.0
    for item, shape in (
        (3.5, Int()),
        ({"a": {"V1": {"Rank2": {}}}}, OptimizerState(adam)),
        ([], MapOf(Int())),
    ):
        with pytest.raises(serde.SerdeError):
            serde.read(file({**tree, "item": item}), shape)
    tree["item"]["lrfckrk4a5oj6"]["V1"]["Rank1"] = tree["item"]["lrfckrk4a5oj6"]["V1"].pop("Rank2")
    with pytest.raises(serde.SerdeError, match="expected 1 dimensions"):
        serde.read(file(tree), OptimizerState(adam))
