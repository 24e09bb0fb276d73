"""The random state of an epoch: a function of the seed and the epoch, whatever came before."""

import random
from typing import Any

import numpy as np
import torch


def set_random_state(seed: int) -> None:
    """Set the global generators of torch (on every device), Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def set_epoch(loader: Any, epoch: int, seed: int) -> None:
    """Tell *loader* which epoch comes: by ``set_epoch``, its own or its sampler's, and by its generator."""
    each: Any
    for each in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if hasattr(each, "set_epoch"):
            each.set_epoch(epoch)
    generator = getattr(loader, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
