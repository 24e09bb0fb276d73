"""Gradient checkpointing: activations are computed again in the backward pass instead of being kept."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_activations(model: nn.Module) -> None:
    """Have each direct child of *model* keep its input only. Costs a second forward pass; changes no number.

    The random state is set back for the second pass, so dropout drops the same.
    """
    for child in model.children():
        if any(True for _ in child.parameters()):
            child.forward = partial(checkpoint, child.forward, use_reentrant=False)
