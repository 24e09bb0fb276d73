"""The fields that Burn has for each of torch's layers, in Burn's order of declaration (that of 0.21).

A *layout* is a record with a name where a tensor or a module stands: the name that PyTorch has for it, with
``.T`` behind it where Burn has the transpose, or `Rows` of it. None is a constant, as strides and rates are.
"""

from collections.abc import Callable

from torch import nn

from stages.records.modules import attention, recurrent
from stages.records.tree import Some, Tree

LINEAR = {"weight": "weight.T", "bias": Some("bias")}
EMBEDDING = {"weight": "weight"}
PRELU = {"alpha": "weight", "alpha_value": None}
BATCH_NORM = {
    "gamma": "weight",
    "beta": "bias",
    "running_mean": "running_mean",
    "running_var": "running_var",
    "momentum": None,
    "epsilon": None,
}
LAYER_NORM = {"gamma": "weight", "beta": Some("bias"), "epsilon": None}
RMS_NORM = {"gamma": "weight", "epsilon": None}
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

LAYERS: tuple[tuple[type[nn.Module], Callable[[nn.Module], Tree]], ...] = (
    (nn.Linear, lambda _: LINEAR),
    (nn.Conv1d, lambda _: _convolution(1)),
    (nn.Conv2d, lambda _: _convolution(2)),
    (nn.Conv3d, lambda _: _convolution(3)),
    (nn.ConvTranspose1d, lambda _: _transposed_convolution(1)),
    (nn.ConvTranspose2d, lambda _: _transposed_convolution(2)),
    (nn.ConvTranspose3d, lambda _: _transposed_convolution(3)),
    (nn.Embedding, lambda _: EMBEDDING),
    (nn.BatchNorm1d, lambda _: BATCH_NORM),
    (nn.BatchNorm2d, lambda _: BATCH_NORM),
    (nn.BatchNorm3d, lambda _: BATCH_NORM),
    (nn.SyncBatchNorm, lambda _: BATCH_NORM),
    (nn.LayerNorm, lambda _: LAYER_NORM),
    (nn.RMSNorm, lambda _: RMS_NORM),
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


def _convolution(dimensions: int) -> Tree:
    each = (None,) * dimensions if dimensions > 1 else None
    sizes = {"stride": each, "kernel_size": each, "dilation": each, "groups": None, "padding": None}
    return {"weight": "weight", "bias": Some("bias"), **sizes}


def _transposed_convolution(dimensions: int) -> Tree:
    each = (None,) * dimensions if dimensions > 1 else None
    sizes = {"padding": each, "padding_out": each, "channels": (None, None)}
    return {**_convolution(dimensions), **sizes}
