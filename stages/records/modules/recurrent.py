"""Burn's fields of recurrent layers: PyTorch keeps all gates in one tensor, Burn each by itself."""

from typing import Any

from torch import nn

from stages.records.modules.slots import Rows
from stages.records.tree import Some, Tree, Variant

SIGMOID = Variant("Sigmoid", 6, None)
TANH = Variant("Tanh", 7, None)
RELU = Variant("Relu", 2, None)
"""Cases of Burn's enum ``Activation``, which LSTM, GRU and RNN have as fields since 0.20."""

GATES = {
    "LSTM": {"input_gate": 0, "forget_gate": 1, "output_gate": 3, "cell_gate": 2},
    "GRU": {"update_gate": 1, "reset_gate": 0, "new_gate": 2},
    "RNN": {"gate": 0},
}
"""Burn's gates in Burn's order, each with its place in PyTorch's tensors."""


def layers(module: Any) -> Tree:
    """The layout of an `nn.LSTM`, `nn.GRU` or `nn.RNN`.

    With one layer that of Burn's ``Lstm`` (or ``BiLstm``, and so on), with more a list of those, as Burn has
    no module of many.
    """
    made = [_directions(module, f"_l{layer}") for layer in range(module.num_layers)]
    return made[0] if len(made) == 1 else made


def cell(module: Any) -> Tree:
    """The layout of an `nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell`: Burn's of one layer."""
    return _layer(module, "")


def _directions(module: Any, suffix: str) -> Tree:
    if not module.bidirectional:
        return _layer(module, suffix)
    both = {"forward": _layer(module, suffix), "reverse": _layer(module, f"{suffix}_reverse")}
    return {**both, "d_hidden": None, "batch_first": None}


def _layer(module: Any, suffix: str) -> Tree:
    kind = _kind(module)
    size = module.hidden_size
    gates = {
        gate: {
            "input_transform": _transform(f"ih{suffix}", place * size, size, bias=module.bias),
            "hidden_transform": _transform(f"hh{suffix}", place * size, size, bias=module.bias),
        }
        for gate, place in GATES[kind].items()
    }
    projection = {"projection": f"weight_hr{suffix}.T"} if getattr(module, "proj_size", 0) else {}
    return {**gates, **_constants(module, kind), **projection}


def _transform(name: str, start: int, size: int, *, bias: bool) -> Tree:
    rows = (start, start + size)
    linear = {"weight": Rows(f"weight_{name}.T", *rows), "bias": None}
    return {**linear, "bias": Some(Rows(f"bias_{name}", *rows))} if bias else linear


def _constants(module: Any, kind: str) -> Tree:
    if kind == "LSTM":
        options = {"d_hidden": None, "batch_first": None, "reverse": None, "clip": None, "input_forget": None}
        activations = {"gate_activation": SIGMOID, "cell_activation": TANH, "hidden_activation": TANH}
        return {**options, **activations}
    if kind == "GRU":
        activations = {"gate_activation": SIGMOID, "hidden_activation": TANH}
        return {"d_hidden": None, "reset_after": None, **activations, "clip": None}
    options = {"d_hidden": None, "batch_first": None, "reverse": None, "clip": None}
    return {**options, "hidden_activation": RELU if module.nonlinearity == "relu" else TANH}


def _kind(module: nn.Module) -> str:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return "LSTM"
    return "GRU" if isinstance(module, nn.GRU | nn.GRUCell) else "RNN"
