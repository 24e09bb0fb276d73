"""Burn's fields for each of torch's layers, in the order in which Burn 0.21 declares them.

A *layout* is a record with names in the place of tensors and modules: PyTorch's name, with the suffix ``.T``
if Burn stores the transpose, or `Rows` of that tensor. None is a constant, such as a stride or a dropout
rate.

The names of transformer norms differ: if the norms come first, Burn's blocks apply their last norm before the
first sublayer, so PyTorch's ``norm1`` is not Burn's ``norm_1``.
"""

from functools import partial
from typing import Any

from torch import nn

from stages.records.record_tree import Some, Tree, Variant
from stages.records.torch_layouts.skeleton import Constant, Rows

LINEAR = {"weight": "weight.T", "bias": Some("bias")}
EMBEDDING = {"weight": "weight"}
PRELU = {"alpha": "weight", "alpha_value": None}
GROUP_NORM = {
    "gamma": Some("weight"),
    "beta": Some("bias"),
    "num_groups": None,
    "num_channels": None,
    "epsilon": None,
    "affine": None,
}
INSTANCE_NORM = {
    "gamma": Some("weight"),
    "beta": Some("bias"),
    "num_channels": None,
    "epsilon": None,
    "affine": None,
}
# the last field is "gelu" up to Burn 0.20 and "activation" since: a constant, whose name does not matter
FEED_FORWARD = {"linear_inner": "linear1", "linear_outer": "linear2", "dropout": None, "gelu": None}
_ATTENTION_CONSTANTS = ("dropout", "activation", "d_model", "n_heads", "d_k", "min_float", "quiet_softmax")
SIGMOID = Variant("Sigmoid", 6, None)
TANH = Variant("Tanh", 7, None)
RELU = Variant("Relu", 2, None)
"""Variants of Burn's enum ``Activation``, which are fields of LSTM, GRU and RNN since Burn 0.20."""

GATES = {
    "LSTM": {"input_gate": 0, "forget_gate": 1, "output_gate": 3, "cell_gate": 2},
    "GRU": {"update_gate": 1, "reset_gate": 0, "new_gate": 2},
    "RNN": {"gate": 0},
}
"""Burn's gates in Burn's order, each with its index in PyTorch's tensors, which hold all gates."""


def layer_layout(module: nn.Module) -> Tree:
    """Return the layout of *module* as a layer, or as a subclass of one; None if Burn has no such layer."""
    for kind, layout in LAYERS:
        if isinstance(module, kind):
            return layout(module) if callable(layout) else layout
    return None


def unlike_burn(module: nn.Module) -> list[str]:
    """Return the tensors of *module* that Burn's module has in another form or always, with the reason."""
    if isinstance(module, nn.LSTM) and module.proj_size:
        return ["projection: Burn's Lstm has no such field"]
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_bias is None:
            return ["bias: Burn's MultiHeadAttention, and a transformer's layer, always has biases"]
        if {module.kdim, module.vdim} != {module.embed_dim}:
            return ["key: Burn's MultiHeadAttention has d_model features in keys and values"]
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and len(module.normalized_shape) > 1:
        kind = type(module).__name__
        return [f"gamma: Burn's {kind} has one dimension, this one has {list(module.normalized_shape)}"]
    return []


def _batch_norm(module: Any) -> Tree:
    """Return the layout of a batch norm; in Burn it always has gamma, beta and running statistics."""
    size = (module.num_features,)
    return {
        "gamma": _present("weight", module.weight, 1.0, size),
        "beta": _present("bias", module.bias, 0.0, size),
        "running_mean": _present("running_mean", module.running_mean, 0.0, size),
        "running_var": _present("running_var", module.running_var, 1.0, size),
        "momentum": None,
        "epsilon": None,
    }


def _norm(shift: dict[str, Tree], module: Any) -> Tree:
    """Return the layout of an `nn.LayerNorm`, with the field *shift*, or of an `nn.RMSNorm`, without one."""
    gamma = _present("weight", module.weight, 1.0, tuple(module.normalized_shape))
    return {"gamma": gamma, **shift, "epsilon": None}


def _present(name: str, tensor: Any, value: float, shape: tuple[int, ...]) -> Tree:
    """Return *name* if the *tensor* of that name exists, else the constant that Burn's module has instead."""
    return Constant(value, shape) if tensor is None else name


def _convolution(dimensions: int) -> dict[str, Tree]:
    sizes_of_axes = (None,) * dimensions if dimensions > 1 else None
    return {
        "weight": "weight",
        "bias": Some("bias"),
        "stride": sizes_of_axes,
        "kernel_size": sizes_of_axes,
        "dilation": sizes_of_axes,
        "groups": None,
        "padding": None,
    }


def _conv_transpose(dimensions: int) -> Tree:
    fields = _convolution(dimensions)
    sizes_of_axes = fields["stride"]
    return {**fields, "padding": sizes_of_axes, "padding_out": sizes_of_axes, "channels": (None, None)}


def _recurrent(module: Any) -> Tree:
    """Return the layout of an `nn.LSTM`, `nn.GRU` or `nn.RNN`.

    One layer has the layout of Burn's ``Lstm`` (or ``BiLstm``, and so on). Burn has no module for several
    layers, so several are a list of these.
    """
    layers = [_recurrent_directions(module, f"_l{layer}") for layer in range(module.num_layers)]
    return layers[0] if len(layers) == 1 else layers


def _recurrent_directions(module: Any, suffix: str) -> Tree:
    if not module.bidirectional:
        return _recurrent_layer(module, suffix)
    both = {
        "forward": _recurrent_layer(module, suffix),
        "reverse": _recurrent_layer(module, f"{suffix}_reverse"),
    }
    return {**both, "d_hidden": None, "batch_first": None}


def _recurrent_layer(module: Any, suffix: str) -> Tree:
    """Return the layout of one direction of a layer, and of a cell, whose names have no *suffix*."""
    kind = _recurrent_kind(module)
    size = module.hidden_size
    gates = {
        gate: {
            "input_transform": _gate_transform(f"ih{suffix}", place * size, size, bias=module.bias),
            "hidden_transform": _gate_transform(f"hh{suffix}", place * size, size, bias=module.bias),
        }
        for gate, place in GATES[kind].items()
    }
    projection = (
        {"projection": f"weight_hr{suffix}.T"} if isinstance(module, nn.RNNBase) and module.proj_size else {}
    )
    return {**gates, **_recurrent_constants(module, kind), **projection}


def _gate_transform(name: str, start: int, size: int, *, bias: bool) -> Tree:
    rows = (start, start + size)
    return {
        "weight": Rows(f"weight_{name}.T", *rows),
        "bias": Some(Rows(f"bias_{name}", *rows)) if bias else None,
    }


def _recurrent_constants(module: Any, kind: str) -> Tree:
    if kind == "GRU":
        activations = {"gate_activation": SIGMOID, "hidden_activation": TANH}
        return {"d_hidden": None, "reset_after": None, **activations, "clip": None}
    options = {"d_hidden": None, "batch_first": None, "reverse": None, "clip": None}
    if kind == "LSTM":
        activations = {"gate_activation": SIGMOID, "cell_activation": TANH, "hidden_activation": TANH}
        return {**options, "input_forget": None, **activations}
    return {**options, "hidden_activation": RELU if module.nonlinearity == "relu" else TANH}


def _recurrent_kind(module: nn.Module) -> str:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return "LSTM"
    return "GRU" if isinstance(module, nn.GRU | nn.GRUCell) else "RNN"


def _attention(module: Any) -> Tree:
    """Return the layout of an `nn.MultiheadAttention`, with the projections in one tensor or in three."""
    size = module.embed_dim
    separate = module.in_proj_weight is None
    fields: dict[str, Tree] = {}
    for place, field in enumerate(("query", "key", "value")):
        rows = (place * size, place * size + size)
        weight = f"{field[0]}_proj_weight.T" if separate else Rows("in_proj_weight.T", *rows)
        biased = module.in_proj_bias is not None
        fields[field] = {"weight": weight, "bias": Some(Rows("in_proj_bias", *rows)) if biased else None}
    return {**fields, "output": "out_proj", **dict.fromkeys(_ATTENTION_CONSTANTS)}


def _transformer_layer(attention: dict[str, str], module: Any) -> Tree:
    """Return the layout of a transformer's layer with the fields *attention*, each of which has a norm."""
    norms = [f"norm{place}" for place in range(1, len(attention) + 2)]
    if module.norm_first:
        norms = [*norms[1:], norms[0]]
    fields = {f"norm_{place}": name for place, name in enumerate(norms, 1)}
    return {**attention, "pwff": FEED_FORWARD, **fields, "dropout": None, "norm_first": None}


def _encoder(module: Any) -> Tree:
    """Return the layout of an `nn.TransformerEncoder` or an `nn.TransformerDecoder`.

    Its final norm, which Burn's lacks, is an extra field.
    """
    sizes = ("d_model", "d_ff", "n_heads", "n_layers", "dropout", "norm_first", "quiet_softmax")
    return {"layers": [f"layers.{place}" for place in range(len(module.layers))], **dict.fromkeys(sizes)}


LAYERS: tuple[tuple[Any, Tree], ...] = (
    (nn.Linear, LINEAR),
    (nn.Conv1d, _convolution(1)),
    (nn.Conv2d, _convolution(2)),
    (nn.Conv3d, _convolution(3)),
    (nn.ConvTranspose1d, _conv_transpose(1)),
    (nn.ConvTranspose2d, _conv_transpose(2)),
    (nn.ConvTranspose3d, _conv_transpose(3)),
    (nn.Embedding, EMBEDDING),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _batch_norm),
    (nn.LayerNorm, partial(_norm, {"beta": Some("bias")})),
    (nn.RMSNorm, partial(_norm, {})),
    (nn.GroupNorm, GROUP_NORM),
    ((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), INSTANCE_NORM),
    (nn.PReLU, PRELU),
    ((nn.LSTM, nn.GRU, nn.RNN), _recurrent),
    ((nn.LSTMCell, nn.GRUCell, nn.RNNCell), partial(_recurrent_layer, suffix="")),
    (nn.MultiheadAttention, _attention),
    (nn.TransformerEncoderLayer, partial(_transformer_layer, {"mha": "self_attn"})),
    (
        nn.TransformerDecoderLayer,
        partial(_transformer_layer, {"cross_attn": "multihead_attn", "self_attn": "self_attn"}),
    ),
    ((nn.TransformerEncoder, nn.TransformerDecoder), _encoder),
)
"""The layout of a kind of layers, or the function that returns that of one of them."""
