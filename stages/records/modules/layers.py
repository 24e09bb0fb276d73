"""The fields that Burn has for each of torch's layers, in Burn's order of declaration (that of 0.21).

A *layout* is a record with a name where a tensor or a module stands: the name that PyTorch has for it, with
``.T`` behind it where Burn has the transpose, or `Rows` of it. None is a constant, as strides and rates are.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from stages.records.modules import attention, recurrent
from stages.records.modules.slots import Constant
from stages.records.tree import Some, Tree

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


def _batch_norm(module: Any) -> Tree:
    """Return the layout of a batch norm; Burn's always has gamma, beta and running statistics."""
    size = (module.num_features,)
    return {
        "gamma": _present(module, "weight", 1.0, size),
        "beta": _present(module, "bias", 0.0, size),
        "running_mean": _present(module, "running_mean", 0.0, size),
        "running_var": _present(module, "running_var", 1.0, size),
        "momentum": None,
        "epsilon": None,
    }


def _layer_norm(module: Any) -> Tree:
    gamma = _present(module, "weight", 1.0, tuple(module.normalized_shape))
    return {"gamma": gamma, "beta": Some("bias"), "epsilon": None}


def _rms_norm(module: Any) -> Tree:
    return {"gamma": _present(module, "weight", 1.0, tuple(module.normalized_shape)), "epsilon": None}


def _present(module: Any, name: str, value: float, shape: tuple[int, ...]) -> Tree:
    """Return *name* if *module* has such a tensor, else what Burn's module would have in its place."""
    return Constant(value, shape) if getattr(module, name, None) is None else name


LAYERS: tuple[tuple[type[nn.Module], Callable[[nn.Module], Tree]], ...] = (
    (nn.Linear, lambda _: LINEAR),
    (nn.Conv1d, lambda _: _convolution(1)),
    (nn.Conv2d, lambda _: _convolution(2)),
    (nn.Conv3d, lambda _: _convolution(3)),
    (nn.ConvTranspose1d, lambda _: _transposed_convolution(1)),
    (nn.ConvTranspose2d, lambda _: _transposed_convolution(2)),
    (nn.ConvTranspose3d, lambda _: _transposed_convolution(3)),
    (nn.Embedding, lambda _: EMBEDDING),
    (nn.BatchNorm1d, _batch_norm),
    (nn.BatchNorm2d, _batch_norm),
    (nn.BatchNorm3d, _batch_norm),
    (nn.SyncBatchNorm, _batch_norm),
    (nn.LayerNorm, _layer_norm),
    (nn.RMSNorm, _rms_norm),
    (nn.GroupNorm, lambda _: GROUP_NORM),
    (nn.InstanceNorm1d, lambda _: INSTANCE_NORM),
    (nn.InstanceNorm2d, lambda _: INSTANCE_NORM),
    (nn.InstanceNorm3d, lambda _: INSTANCE_NORM),
    (nn.PReLU, lambda _: PRELU),
    (nn.LSTM, recurrent.layers),
    (nn.GRU, recurrent.layers),
    (nn.RNN, recurrent.layers),
    (nn.LSTMCell, recurrent.cell),
    (nn.GRUCell, recurrent.cell),
    (nn.RNNCell, recurrent.cell),
    (nn.MultiheadAttention, attention.multi_head),
    (nn.TransformerEncoderLayer, attention.encoder_layer),
    (nn.TransformerEncoder, attention.encoder),
    (nn.TransformerDecoderLayer, attention.decoder_layer),
    (nn.TransformerDecoder, attention.decoder),
)


def layer_layout(module: nn.Module) -> Tree:
    """The layout of the layer that *module* is, or a subclass of; None where it is none that Burn has."""
    for kind, layout in LAYERS:
        if isinstance(module, kind):
            return layout(module)
    return None


def unlike_burn(module: nn.Module) -> list[str]:
    """Return the names of *module*'s tensors and children that Burn's module cannot load, with the reason."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and len(module.normalized_shape) > 1:
        kind = type(module).__name__
        return [f"gamma: Burn's {kind} has one dimension, this one {list(module.normalized_shape)}"]
    if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder) and module.norm is not None:
        return [f"norm: Burn's {type(module).__name__} has no norm at its end, and ignores this one"]
    return []


def _convolution(dimensions: int) -> Tree:
    each = (None,) * dimensions if dimensions > 1 else None
    sizes = {"stride": each, "kernel_size": each, "dilation": each, "groups": None, "padding": None}
    return {"weight": "weight", "bias": Some("bias"), **sizes}


def _transposed_convolution(dimensions: int) -> Tree:
    each = (None,) * dimensions if dimensions > 1 else None
    sizes = {"padding": each, "padding_out": each, "channels": (None, None)}
    return {**_convolution(dimensions), **sizes}
