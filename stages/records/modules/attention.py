"""Burn's fields of attention and of transformers.

What Burn calls ``norm_1`` is not always PyTorch's ``norm1``: with the norms first, Burn's blocks use their
last norm before the first sublayer, so the names go round by one.
"""

from typing import Any

from stages.records.modules.slots import Rows
from stages.records.tree import Some, Tree

_NO_NAME = ("dropout", "activation", "d_model", "n_heads", "d_k", "min_float", "quiet_softmax")


def multi_head(module: Any) -> Tree:
    """The layout of an `nn.MultiheadAttention`, with the projections in one tensor or in three."""
    size = module.embed_dim
    separate = module.in_proj_weight is None
    fields: dict[str, Tree] = {}
    for place, field in enumerate(("query", "key", "value")):
        rows = (place * size, place * size + size)
        weight = f"{field[0]}_proj_weight.T" if separate else Rows("in_proj_weight.T", *rows)
        biased = module.in_proj_bias is not None
        fields[field] = {"weight": weight, "bias": Some(Rows("in_proj_bias", *rows)) if biased else None}
    return {**fields, "output": "out_proj", **dict.fromkeys(_NO_NAME)}


def encoder_layer(module: Any) -> Tree:
    """The layout of an `nn.TransformerEncoderLayer`."""
    norms = ("norm2", "norm1") if module.norm_first else ("norm1", "norm2")
    attention = {"mha": "self_attn", "pwff": _feed_forward()}
    return {**attention, **_norms(norms), "dropout": None, "norm_first": None}


def decoder_layer(module: Any) -> Tree:
    """The layout of an `nn.TransformerDecoderLayer`."""
    norms = ("norm2", "norm3", "norm1") if module.norm_first else ("norm1", "norm2", "norm3")
    attention = {"cross_attn": "multihead_attn", "self_attn": "self_attn", "pwff": _feed_forward()}
    return {**attention, **_norms(norms), "dropout": None, "norm_first": None}


def encoder(module: Any) -> Tree:
    """The layout of an `nn.TransformerEncoder`; a norm at its end, which Burn's has not, stands beside."""
    sizes = ("d_model", "d_ff", "n_heads", "n_layers", "dropout", "norm_first", "quiet_softmax")
    return {"layers": [f"layers.{place}" for place in range(len(module.layers))], **dict.fromkeys(sizes)}


def decoder(module: Any) -> Tree:
    """The layout of an `nn.TransformerDecoder`; a norm at its end stands beside."""
    return encoder(module)


def _feed_forward() -> Tree:
    # the last field is "gelu" up to 0.20, "activation" since: a constant, which may have any name
    return {"linear_inner": "linear1", "linear_outer": "linear2", "dropout": None, "gelu": None}


def _norms(names: tuple[str, ...]) -> Tree:
    return {f"norm_{place}": name for place, name in enumerate(names, 1)}
