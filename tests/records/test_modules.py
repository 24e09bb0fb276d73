"""A module's record has the fields of its Burn counterpart, and loading it restores the module."""

import copy
from pathlib import Path

import msgpack
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages.contracts.errors import RecordError
from stages.records import DefaultRecorder, NamedMpkFileRecorder, read_item, save_file
from stages.records.precision import FullPrecision, HalfPrecision
from stages.records.record_tree import Map, RawTensor, Some, Variant, iter_leaves, strip_type_hints
from stages.records.tensors import BLOCK_SIZE, from_raw, to_raw
from stages.records.torch_layouts.module_record import (
    fields_unlike_burn,
    module_supplement,
    record_of,
    skeleton_of,
)
from stages.records.torch_layouts.skeleton import Slot, fill_slots, from_plain, slots, to_plain
from stages.records.torch_layouts.state_dict import load_into, state_of

BURN = Path(__file__).parents[3] / "shared/burn/model.mpk"


def through_a_file(node, precision=FullPrecision):
    """Return *node* as a format with names reads it: without markers, each tensor with its own bytes."""
    if isinstance(node, RawTensor):
        there = precision.convert(node)
        return RawTensor.of(there.dtype, there.shape, bytearray(there.data()))
    if isinstance(node, dict):
        return {key: through_a_file(value, precision) for key, value in node.items()}
    if isinstance(node, list):
        return [through_a_file(value, precision) for value in node]
    return node


def randomize(module, seed=1):
    """Return *module* with random numbers in all its float tensors."""
    generator = torch.Generator().manual_seed(seed)
    for entry in module.state_dict().values():
        if entry.is_floating_point():
            entry.copy_(torch.rand(entry.shape, generator=generator) + 0.1)
    return module.eval()


def fields(record):
    """Return the paths of *record*: parameters with their shapes, constants with None."""
    shown = replace_by_shapes(strip_type_hints(record))
    return dict(iter_leaves(shown))


def replace_by_shapes(node):
    if isinstance(node, dict) and isinstance(node.get("param"), RawTensor):
        return str(list(node["param"].shape))
    if isinstance(node, dict):
        return {key: replace_by_shapes(value) for key, value in node.items()}
    return [replace_by_shapes(value) for value in node] if isinstance(node, list) else node


GATE = {f"{kind}_transform.{name}" for kind in ("input", "hidden") for name in ("weight", "bias")}
LAYERS = [
    (nn.Linear(2, 3), {"weight": "[2, 3]", "bias": "[3]"}),
    (nn.Linear(2, 3, bias=False), {"weight": "[2, 3]", "bias": None}),
    (nn.Embedding(5, 2), {"weight": "[5, 2]"}),
    (nn.Bilinear(2, 3, 4), {"weight": "[4, 2, 3]", "bias": "[4]"}),
    (nn.PReLU(3), {"alpha": "[3]", "alpha_value": None}),
    (nn.LayerNorm(3), {"gamma": "[3]", "beta": "[3]", "epsilon": None}),
    (nn.LayerNorm(3, elementwise_affine=False), {"gamma": "[3]", "beta": None, "epsilon": None}),
    (nn.RMSNorm(3, elementwise_affine=False), {"gamma": "[3]", "epsilon": None}),
    (nn.RMSNorm(3), {"gamma": "[3]", "epsilon": None}),
    (
        nn.BatchNorm2d(3),
        {
            "gamma": "[3]",
            "beta": "[3]",
            "running_mean": "[3]",
            "running_var": "[3]",
            "momentum": None,
            "epsilon": None,
        },
    ),
    (
        nn.GroupNorm(1, 3),
        {
            "gamma": "[3]",
            "beta": "[3]",
            "num_groups": None,
            "num_channels": None,
            "epsilon": None,
            "affine": None,
        },
    ),
    (
        nn.InstanceNorm1d(3, affine=True),
        {"gamma": "[3]", "beta": "[3]", "num_channels": None, "epsilon": None, "affine": None},
    ),
    (
        nn.Conv1d(2, 3, 5),
        {
            "weight": "[3, 2, 5]",
            "bias": "[3]",
            "stride": None,
            "kernel_size": None,
            "dilation": None,
            "groups": None,
            "padding": None,
        },
    ),
    (nn.Sequential(nn.Linear(1, 1), nn.ReLU()), {"0.weight": "[1, 1]", "0.bias": "[1]", "1": None}),
    (nn.ModuleDict({"b": nn.Embedding(1, 1), "a": nn.Dropout()}), {"b.weight": "[1, 1]", "a": None}),
]


@pytest.mark.parametrize(("layer", "expected"), LAYERS, ids=lambda case: type(case).__name__)
def test_layer_record_has_fields_of_burn_in_order_of_burn(layer, expected):
    found = fields(record_of(layer))

    assert found == expected
    assert list(found) == list(expected)


def test_record_marks_arrays_and_options_for_formats_without_names():
    conv = skeleton_of(nn.Conv2d(1, 2, 3))
    transposed = skeleton_of(nn.ConvTranspose2d(1, 2, 3))

    assert conv["stride"] == conv["kernel_size"] == conv["dilation"] == (None, None)
    assert isinstance(conv["bias"], Some)
    assert list(transposed)[-4:] == ["groups", "padding", "padding_out", "channels"]
    assert isinstance(skeleton_of(nn.ModuleDict({"a": nn.Linear(1, 1)})), Map)
    assert skeleton_of(nn.GRU(1, 1))["gate_activation"] == Variant("Sigmoid", 6, None)


@pytest.mark.parametrize("kind", [nn.RNN, nn.RNNCell])
def test_record_with_another_activation_is_refused(kind):
    relu = strip_type_hints(record_of(kind(2, 3, nonlinearity="relu")))
    tanh = kind(2, 3)
    before = {name: tensor.clone() for name, tensor in tanh.state_dict().items()}

    with pytest.raises(RecordError, match="hidden_activation is Relu, expected Tanh"):
        load_into(tanh, relu)
    torch.testing.assert_close(dict(tanh.state_dict()), before)

    del relu["hidden_activation"]  # Burn up to 0.19 has no such field, and burnpack stores no activation
    load_into(tanh, relu)


@pytest.mark.parametrize("layer", [nn.LSTM(2, 3), nn.GRU(2, 3), nn.RNN(2, 3), nn.LSTMCell(2, 3)])
def test_recurrent_layer_is_recorded_by_gates(layer):
    found = fields(record_of(layer))

    gates = {
        "LSTM": ("input_gate", "forget_gate", "output_gate", "cell_gate"),
        "GRU": ("update_gate", "reset_gate", "new_gate"),
        "RNN": ("gate",),
    }[type(layer).__name__.removesuffix("Cell")]
    assert {path for path, shape in found.items() if shape} == {
        f"{gate}.{at}" for gate in gates for at in GATE
    }
    assert {found[f"{gate}.input_transform.weight"] for gate in gates} == {"[2, 3]"}
    assert {found[f"{gate}.hidden_transform.weight"] for gate in gates} == {"[3, 3]"}


def test_recurrent_layers_are_a_list_and_directions_are_fields():
    record = skeleton_of(nn.LSTM(2, 3, num_layers=2, bidirectional=True))

    assert [list(layer) for layer in record] == [["forward", "reverse", "d_hidden", "batch_first"]] * 2


def linear(node, x):
    bias = node["bias"]
    product = x @ from_raw(node["weight"]["param"])
    return product if bias is None else product + from_raw(bias["param"])


def gate(node, x, hidden):
    return linear(node["input_transform"], x) + linear(node["hidden_transform"], hidden)


def test_linear_record_computes_as_burn_does():
    layer, x = nn.Linear(2, 3), torch.randn(4, 2)

    torch.testing.assert_close(linear(strip_type_hints(record_of(layer)), x), layer(x))


def test_lstm_record_computes_as_burn_does():
    layer, x = nn.LSTM(2, 3, batch_first=True), torch.randn(4, 5, 2)
    node, hidden, cell = strip_type_hints(record_of(layer)), torch.zeros(4, 3), torch.zeros(4, 3)
    for t in range(5):
        now = x[:, t]
        kept = torch.sigmoid(gate(node["forget_gate"], now, hidden)) * cell
        new = torch.sigmoid(gate(node["input_gate"], now, hidden))
        cell = kept + new * torch.tanh(gate(node["cell_gate"], now, hidden))
        hidden = torch.sigmoid(gate(node["output_gate"], now, hidden)) * torch.tanh(cell)

    torch.testing.assert_close(hidden, layer(x)[0][:, -1])


def test_gru_record_computes_as_burn_does():
    layer, x = nn.GRU(2, 3, batch_first=True), torch.randn(4, 5, 2)
    node, hidden = strip_type_hints(record_of(layer)), torch.zeros(4, 3)
    for t in range(5):
        now = x[:, t]
        update = torch.sigmoid(gate(node["update_gate"], now, hidden))
        reset = torch.sigmoid(gate(node["reset_gate"], now, hidden))
        new_gate = node["new_gate"]
        inner = linear(new_gate["input_transform"], now)
        candidate = torch.tanh(inner + reset * linear(new_gate["hidden_transform"], hidden))
        hidden = candidate * (1 - update) + update * hidden

    torch.testing.assert_close(hidden, layer(x)[0][:, -1])


def attend(node, query, key, value, heads):
    def split(kind, x):
        x = linear(node[kind], x)
        return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

    query, key, value = split("query", query), split("key", key), split("value", value)
    weights = torch.softmax(query @ key.transpose(2, 3) / query.shape[-1] ** 0.5, 3)
    context = (weights @ value).transpose(1, 2)
    return linear(node["output"], context.reshape(*context.shape[:2], -1))


@pytest.mark.parametrize("options", [{}, {"kdim": 3, "vdim": 5}, {"bias": False}])
def test_multi_head_attention_record_computes_as_burn_does(options):
    layer = randomize(nn.MultiheadAttention(4, 2, batch_first=True, **options))
    sizes = (4, options.get("kdim", 4), options.get("vdim", 4))
    inputs = [torch.randn(2, 3, size) for size in sizes]

    torch.testing.assert_close(
        attend(strip_type_hints(record_of(layer)), *inputs, heads=2), layer(*inputs)[0]
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_record_computes_as_burn_does(norm_first):
    """If the norms come first, the last of Burn's norms is PyTorch's first."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True, norm_first=norm_first)
    node, x = strip_type_hints(record_of(randomize(layer))), torch.randn(2, 3, 4)

    def norm(name, x):
        at = node[name]
        return F.layer_norm(x, (4,), from_raw(at["gamma"]["param"]), from_raw(at["beta"]["param"]))

    residual = norm("norm_2", x) if norm_first else x
    y = x + attend(node["mha"], residual, residual, residual, 2)
    residual = norm("norm_1", y)
    y = y if norm_first else residual
    y = y + linear(node["pwff"]["linear_outer"], F.gelu(linear(node["pwff"]["linear_inner"], residual)))
    y = y if norm_first else norm("norm_2", y)

    torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-5)


class Own(nn.Module):
    """A module with parameters, buffers of several kinds and children, which Burn does not have."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_parameter("shift", None)
        self.register_buffer("places", torch.tensor([2, 0, 1]))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Dropout()])

    def forward(self, x):
        return self.layers[0](x * self.scale)[:, self.places] * self.mask


class Wider(nn.Linear):
    """A layer with additional members."""

    def __init__(self):
        super().__init__(3, 3)
        self.gain = nn.Parameter(torch.ones(1))
        self.after = nn.LayerNorm(3)

    def forward(self, x):
        return self.after(super().forward(x) * self.gain)


def test_own_module_record_has_its_names_in_its_order():
    assert fields(record_of(Own())) == {
        "scale": "[3]",
        "shift": None,
        "places": "[3]",
        "mask": "[3]",
        "layers.0.weight": "[3, 3]",
        "layers.0.bias": "[3]",
        "layers.1": None,
    }
    assert list(skeleton_of(Wider())) == ["weight", "bias", "gain", "after"]


def vector(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


SEQUENCE = vector(2, 3, 4)
PAIRS = [
    (Own, (vector(2, 3),)),
    (Wider, (vector(2, 3),)),
    (lambda: nn.Conv2d(2, 3, 2, stride=2), (vector(1, 2, 4, 4),)),
    (lambda: nn.Conv3d(1, 2, 2), (vector(1, 1, 3, 3, 3),)),
    (lambda: nn.ConvTranspose1d(2, 3, 2), (vector(1, 2, 4),)),
    (lambda: nn.ConvTranspose3d(1, 2, 2), (vector(1, 1, 2, 2, 2),)),
    (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(), nn.RMSNorm(4)), (vector(2, 3),)),
    (lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True), (vector(2, 2, 5),)),
    (lambda: nn.BatchNorm1d(3, affine=False), (vector(2, 3),)),
    (lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False), (vector(2, 3),)),
    (lambda: nn.LayerNorm((2, 3), elementwise_affine=False), (vector(2, 3),)),
    (lambda: nn.RMSNorm(3, elementwise_affine=False), (vector(2, 3),)),
    (lambda: nn.Bilinear(2, 3, 4), (vector(5, 2), vector(5, 3))),
    (lambda: nn.LSTM(4, 3, 2, bidirectional=True, proj_size=2), (SEQUENCE,)),
    (lambda: nn.GRU(4, 3, 2, bias=False), (SEQUENCE,)),
    (lambda: nn.RNN(4, 3, bidirectional=True), (SEQUENCE,)),
    (lambda: nn.GRUCell(4, 3), (vector(2, 4),)),
    (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), (SEQUENCE,) * 3),
    (lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True), (SEQUENCE, SEQUENCE)),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (vector(2, 3),)),
]


def outputs(module, inputs):
    out = module(*inputs)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize(("make", "inputs"), PAIRS)
def test_loaded_record_gives_the_same_outputs_bit_for_bit(make, inputs):
    module, other = randomize(make(), 1), randomize(make(), 2)

    report = load_into(other, through_a_file(strip_type_hints(record_of(module))))

    assert report.fits
    torch.testing.assert_close(outputs(other, inputs), outputs(module, inputs), rtol=0, atol=0)


@pytest.mark.parametrize(("make", "inputs"), PAIRS)
def test_stored_skeleton_reads_record_without_module(make, inputs):
    module = randomize(make())
    stored = msgpack.unpackb(msgpack.packb(to_plain(skeleton_of(module))))

    read = state_of(
        through_a_file(strip_type_hints(record_of(module))), from_plain(stored, "a file"), "a file"
    )

    state = {**module.state_dict()}
    assert from_plain(stored, "a file") == skeleton_of(module)
    assert read.state.keys() | module_supplement(module).keys() == state.keys()
    assert all(torch.equal(entry, state[name]) for name, entry in read.state.items())


@pytest.mark.parametrize(
    "stored", [7, ["slot", "a"], ["slot", "a", 3, 1, 0, "id"], ["struct", []], ["list", {}], ["some"], "text"]
)
def test_invalid_stored_skeleton_is_refused(stored):
    with pytest.raises(RecordError, match="a file"):
        from_plain(stored, "a file")


def test_too_deep_stored_skeleton_is_refused():
    stored = None
    for _ in range(200):
        stored = ["some", stored]

    with pytest.raises(RecordError, match="128 levels"):
        from_plain(stored, "a file")


def test_supplement_holds_what_record_does_not_restore_exactly():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2).double(), nn.Linear(2, 2).bfloat16(), Own())

    assert set(module_supplement(module)) == {"0.num_batches_tracked", "1.weight", "1.bias", "3.places"}


def test_full_precision_restores_half_dtypes_bit_for_bit():
    module, other = randomize(nn.Linear(3, 2).bfloat16(), 1), randomize(nn.Linear(3, 2).bfloat16(), 2)

    load_into(other, through_a_file(strip_type_hints(record_of(module))))

    assert torch.equal(other.weight, module.weight)
    assert other.weight.dtype == torch.bfloat16


def test_any_precision_loads_into_any_dtype():
    module = randomize(nn.Linear(3, 2))
    other = nn.Linear(3, 2).double()

    load_into(other, through_a_file(strip_type_hints(record_of(module)), HalfPrecision))

    assert torch.equal(other.weight, module.weight.half().double())


def test_tied_weights_are_recorded_at_each_path_and_stay_tied():
    def tied():
        module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        module[1].weight = module[0].weight
        return module

    module, other = randomize(tied(), 1), randomize(tied(), 2)
    record = strip_type_hints(record_of(module))
    load_into(other, through_a_file(record))

    assert record[0]["weight"]["id"] != record[1]["weight"]["id"]
    assert torch.equal(other[0].weight, module[0].weight)
    assert other[0].weight is other[1].weight


def test_parameter_ids_depend_only_on_path():
    one, two = record_of(nn.Sequential(nn.Linear(1, 1))), record_of(nn.Sequential(nn.Linear(5, 2)))

    assert one[0]["weight"]["id"] == two[0]["weight"]["id"]
    assert len(one[0]["weight"]["id"]) == 13


def other_record():
    """Return another module's record: a tensor is missing, one unexpected, one of another shape."""
    record = through_a_file(
        strip_type_hints(record_of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(1, 1))))
    )
    record[1]["bias"] = None
    return record


def test_strict_load_lists_misfits_and_changes_nothing():
    module = nn.Sequential(nn.Linear(2, 5), nn.Linear(3, 4))
    before = copy.deepcopy(module.state_dict())

    with pytest.raises(RecordError) as failure:
        load_into(module, other_record(), source="model.mpk")

    message = str(failure.value)
    assert "model.mpk does not fit Sequential" in message
    assert "missing: 1.bias" in message
    assert "unexpected: 2.weight, 2.bias" in message
    assert "0.weight is F32 [2, 3], expected F32 [2, 5]" in message
    assert all(torch.equal(before[name], entry) for name, entry in module.state_dict().items())


def test_load_without_strict_loads_what_fits():
    module, record = nn.Sequential(nn.Linear(2, 5), nn.Linear(3, 4)), other_record()

    report = load_into(module, record, strict=False)

    assert report.missing == ["1.bias"]
    assert report.unexpected == ["2.weight", "2.bias"]
    assert len(report.mismatched) == 2
    assert torch.equal(module[1].weight, from_raw(record[1]["weight"]["param"]).t())


def test_bare_tensor_of_a_parameter_named_param_is_loaded():
    module = nn.Sequential(nn.Module())
    module[0].register_parameter("param", nn.Parameter(torch.zeros(2)))

    load_into(module, [{"param": torch.ones(2)}], layout="burn")

    assert module[0].param.tolist() == [1, 1]


def test_tensor_in_the_place_of_a_struct_is_unexpected():
    module = nn.Sequential(nn.Linear(2, 3))
    tensor = RawTensor.of("F32", (1,), bytes(4))

    for node in (tensor, {"id": "0" * 13, "param": tensor}):
        report = load_into(module, [node], strict=False, layout="burn")
        assert (report.missing, report.unexpected) == (["0.weight", "0.bias"], ["0"])


def test_long_list_of_names_is_shortened():
    module = nn.Sequential(*[nn.Linear(1, 1) for _ in range(30)])

    with pytest.raises(RecordError, match="and 40 more"):
        load_into(module, [])


def test_float_tensor_is_not_loaded_into_integer_buffer():
    record = through_a_file(strip_type_hints(record_of(Own())))
    record["places"]["param"] = record["scale"]["param"]

    with pytest.raises(RecordError, match="places is F32 .3., expected I64"):
        load_into(Own(), record)


def test_constants_may_be_missing_or_have_any_value():
    record = through_a_file(strip_type_hints(record_of(nn.Conv2d(1, 2, 3))))
    del record["stride"], record["bias"]
    record |= {"padding": 7, "new_constant": None}
    module = nn.Conv2d(1, 2, 3, bias=False)

    assert load_into(module, record).fits


def nested(state):
    """Return *state* as a reader of dotted names returns it."""
    root = {}
    for name, entry in state.items():
        *path, last = name.split(".")
        node = root
        for key in path:
            node = node.setdefault(key, {})
        node[last] = to_raw(entry.clone())
    return root


@pytest.mark.parametrize(
    "make", [lambda: nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), lambda: nn.LSTM(2, 3)]
)
def test_layout_of_pytorch_is_recognized(make):
    module, other = randomize(make(), 1), randomize(make(), 2)

    load_into(other, nested(module.state_dict()))

    assert all(torch.equal(entry, other.state_dict()[name]) for name, entry in module.state_dict().items())


def test_ambiguous_layout_is_refused():
    module = nn.Sequential(nn.Linear(2, 2))

    with pytest.raises(RecordError, match="Set layout to 'burn' or 'torch'"):
        load_into(module, nested(module.state_dict()))
    load_into(
        module,
        nested({"0.weight": torch.tensor([[1.0, 2], [3, 4]]), "0.bias": torch.zeros(2)}),
        layout="torch",
    )

    assert module[0].weight.tolist() == [[1, 2], [3, 4]]


def test_one_name_of_tied_weights_suffices_in_pytorch_layout():
    module = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3))
    module[1].weight = module[0].weight
    state = {"0.weight": torch.rand(3, 2), "1.bias": torch.rand(3)}

    load_into(module, nested(state))

    assert torch.equal(module[1].weight, state["0.weight"])


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.kernel = nn.Parameter(torch.rand(4, 5))

    def burn_record(self):
        return {"size": None, "head": {"linear": "fc", "kernel": Some("kernel.T")}, "pair": ("fc.bias",)}


def test_burn_record_method_defines_layout():
    record = record_of(Transposed())

    assert fields(record) == {
        "size": None,
        "head.linear.weight": "[2, 3]",
        "head.linear.bias": "[3]",
        "head.kernel": "[5, 4]",
        "pair.0": "[3]",
    }
    assert load_into(Transposed(), through_a_file(strip_type_hints(record))).fits


class ColumnLinear(nn.Linear):
    """Burn's Linear with `LinearLayout::Col`, whose record has the axes [out, in]."""

    def burn_record(self):
        return {"weight": "weight", "bias": Some("bias")}


@pytest.mark.parametrize("size", [3, 4])
def test_column_layout_of_burns_linear_is_shown_and_read(size, tmp_path):
    module = nn.Sequential(ColumnLinear(4, size))
    again = nn.Sequential(ColumnLinear(4, size))

    path = NamedMpkFileRecorder().record(record_of(module), tmp_path / "model")

    assert list(read_item(path)[0]["weight"]["param"].shape) == [size, 4]
    load_into(again, read_item(path))
    assert torch.equal(again[0].weight, module[0].weight)
    if size != 4:
        with pytest.raises(RecordError, match=r"expected F32 \[4, 3\]: for LinearLayout::Col, name 'weight'"):
            load_into(nn.Sequential(nn.Linear(4, size)), read_item(path), layout="burn")


def with_ids_of_burn(node):
    """Return *node* with other ids, as Burn's random ones are."""
    if isinstance(node, dict):
        return {
            key: "0000000000001" if key == "id" else with_ids_of_burn(value) for key, value in node.items()
        }
    return [with_ids_of_burn(value) for value in node] if isinstance(node, list) else node


@pytest.mark.parametrize(
    ("module", "is_of_burn", "name"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), True, "0.weight"),
        (nn.Linear(4, 4), True, "weight"),
        (nn.Linear(4, 4), False, None),
        (nn.Linear(4, 3), True, None),
        (ColumnLinear(4, 4), True, None),
        (nn.MultiheadAttention(4, 2), True, None),
    ],
)
def test_square_linear_of_burn_is_read_with_a_warning(module, is_of_burn, name, caplog):
    record = strip_type_hints(record_of(module))

    load_into(module, with_ids_of_burn(record) if is_of_burn else record, source="model.bpk", layout="burn")

    expected = f"model.bpk does not state the axes of {name}, read as Burn's default, [in, out]. If"
    assert [record.getMessage()[: len(expected)] for record in caplog.records] == [expected] * (
        name is not None
    )


@pytest.mark.parametrize(
    ("layout", "message"), [({"a": "unknown"}, "unknown"), ({"a": 7}, "7"), ("bias.T", "matrix")]
)
def test_layout_with_unknown_name_is_refused(layout, message):
    module = nn.Linear(1, 1)
    module.burn_record = lambda: layout

    with pytest.raises(RecordError, match=message):
        skeleton_of(module)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (torch.ones(2, dtype=torch.complex64), "view_as_real"),
        (torch.ones(2).to(torch.float8_e4m3fn), "float8"),
        (torch.eye(2).to_sparse(), "to_dense"),
        (torch.ones(2, device="meta"), "to_empty"),
    ],
)
def test_error_names_tensor_that_cannot_be_recorded(entry, message):
    module = nn.Module()
    module.register_buffer("odd", entry)

    with pytest.raises(RecordError, match=f"odd.*{message}"):
        record_of(module)


def test_lazy_parameter_is_refused():
    with pytest.raises(RecordError, match="Run a batch"):
        skeleton_of(nn.LazyLinear(3))


def test_raw_tensor_shares_memory_and_reads_it_on_demand():
    weight = torch.zeros(3)
    there = to_raw(weight)
    weight[0] = 1

    assert from_raw(there).data_ptr() == weight.data_ptr()
    assert from_raw(there).tolist() == [1, 0, 0]


def test_transposed_tensor_is_read_in_pieces():
    weight = torch.randn(700, 3000)
    pieces = list(to_raw(weight.t()).pieces())

    assert len(pieces) > 2
    assert max(piece.nbytes for piece in pieces) <= BLOCK_SIZE
    assert b"".join(pieces) == weight.t().contiguous().numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint16, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_raw_tensor_round_trips_any_dtype(dtype, shape):
    inputs = torch.randint(0, 2, shape).to(dtype)

    assert torch.equal(from_raw(to_raw(inputs)), inputs)
    assert torch.equal(
        from_raw(RawTensor.of(to_raw(inputs).dtype, shape, bytes(to_raw(inputs).data()))), inputs
    )


def test_bool_other_than_0_or_1_is_refused():
    with pytest.raises(RecordError, match="only 0 and 1"):
        from_raw(RawTensor.of("Bool", (2,), b"\x01\x02"))


class Cell(nn.Module):
    """One layer of the LSTM in Burn's modern-lstm example, with PyTorch's names."""

    def __init__(self, size):
        super().__init__()
        self.input_map, self.hidden_map = nn.Linear(size, 128), nn.Linear(32, 128)
        self.norms = nn.ModuleList([nn.LayerNorm(128), nn.LayerNorm(32), nn.LayerNorm(32)])

    def burn_record(self):
        norms = {f"norm_{name}": f"norms.{place}" for place, name in enumerate("xhc")}
        return {
            "hidden_size": None,
            "weight_ih": "input_map",
            "weight_hh": "hidden_map",
            **norms,
            "dropout": None,
        }


class Modern(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.ModuleList([Cell(1), Cell(32)]) for _ in range(2))
        self.out = nn.Linear(64, 1)

    def burn_record(self):
        stacks = {"stacked_lstm": {"layers": "up"}, "reverse_lstm": {"layers": "down"}}
        return {**stacks, "dropout": None, "fc": "out"}


@pytest.mark.skipif(not BURN.exists(), reason="no file written by Burn next to the project")
def test_file_of_burn_loads_into_equivalent_torch_module():
    def node(pairs):
        made = dict(pairs)
        if made.keys() == {"bytes", "shape", "dtype"}:
            return RawTensor.of(made["dtype"], tuple(made["shape"]), made["bytes"])
        return made

    item = msgpack.unpackb(BURN.read_bytes(), object_pairs_hook=node)["item"]
    module = Modern()
    report = load_into(module, item, source="model.mpk")

    there = from_raw(item["reverse_lstm"]["layers"][1]["weight_hh"]["weight"]["param"]).float()
    assert report.fits
    assert torch.equal(module.down[1].hidden_map.weight, there.t())
    assert [path for path, _ in slots(skeleton_of(module))] == [
        path.removesuffix(".id") for path, leaf in iter_leaves(item) if isinstance(leaf, str)
    ]


def test_fill_slots_keeps_markers():
    tree = {
        "a": Some(Slot("x", None, None, transposed=False, id="")),
        "b": (None,),
        "c": Map(d=[Variant("E", 1, None)]),
    }

    done = fill_slots(tree, lambda slot: slot.name)

    assert done == {"a": Some("x"), "b": (None,), "c": {"d": [Variant("E", 1, None)]}}
    assert isinstance(done["c"], Map)


NORMS = {
    "batch norm": lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False),
    "layer norm": lambda: nn.LayerNorm(3, elementwise_affine=False),
    "rms norm": lambda: nn.RMSNorm(3, elementwise_affine=False),
}


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_parameter_that_only_burn_has_is_the_same_constant_each_time(make):
    first, again = strip_type_hints(record_of(make())), strip_type_hints(record_of(make()))
    values = {"gamma": 1.0, "beta": 0.0, "running_mean": 0.0, "running_var": 1.0}

    for name, entry in first.items():
        if entry is not None:
            assert from_raw(entry["param"]).tolist() == [values[name]] * 3
            assert entry["id"] == again[name]["id"]
    assert len({entry["id"] for entry in first.values() if entry}) == sum(map(bool, first.values()))


@pytest.mark.parametrize(
    ("value", "shape", "kind"), [(2.0, (3,), "unexpected"), (1.0, (4,), "mismatched"), (1.0, (3,), None)]
)
def test_constant_parameter_with_other_content_does_not_fit(value, shape, kind):
    gamma = {"id": "0" * 13, "param": to_raw(torch.full(shape, value))}

    read = load_into(nn.LayerNorm(3, elementwise_affine=False), {"gamma": gamma}, strict=False)

    assert read.fits == (kind is None)
    assert kind is None or "gamma" in getattr(read, kind)[0]


def test_fields_that_burn_cannot_load_are_listed():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1, nn.LayerNorm(4))
    model = nn.ModuleDict({"body": encoder, "wide": nn.LayerNorm((2, 3)), "fc": nn.Linear(2, 2)})

    fields = fields_unlike_burn(model)

    assert [field.partition(":")[0] for field in fields] == ["body.norm", "wide.gamma"]


class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.scale = nn.Parameter(torch.ones(2))


UNLIKE = {
    "running statistics": (nn.InstanceNorm1d(3, track_running_stats=True), ["running_mean", "running_var"]),
    "projection": (nn.LSTM(3, 4, proj_size=2), ["projection"]),
    "no bias": (nn.TransformerEncoderLayer(4, 2, 8, bias=False), ["self_attn.bias"]),
    "keys of another size": (nn.MultiheadAttention(4, 2, kdim=2, vdim=2), ["key"]),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), ["weight"]),
    "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Conv1d(2, 2, 1)), ["weight"]),
    "subclass of a user": (Scaled(), []),
    "lazy": (nn.LazyLinear(2), []),
    "affine norm": (nn.InstanceNorm1d(3, affine=True), []),
    "batch norm": (nn.BatchNorm1d(3, affine=False, track_running_stats=False), []),
}


@pytest.mark.parametrize(("module", "fields"), UNLIKE.values(), ids=UNLIKE)
def test_tensors_of_a_layer_that_burn_lacks_are_listed(module, fields):
    assert [field.partition(":")[0] for field in fields_unlike_burn(module)] == fields


def test_saving_model_that_burn_cannot_load_warns_with_field_name(tmp_path, caplog):
    save_file(nn.Sequential(nn.LayerNorm((2, 3))), tmp_path / "model", DefaultRecorder())

    assert "0.gamma: Burn's LayerNorm has one dimension" in caplog.text
