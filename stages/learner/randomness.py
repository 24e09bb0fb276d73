"""The random state of an epoch: a function of the seed and the epoch, whatever came before.

In the middle of an epoch it is what the steps so far made of it, and a checkpoint there holds it.
"""

import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor


def set_random_state(seed: int) -> None:
    """Set the global generators of torch (on every device), Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_state() -> dict[str, Any]:
    """The global generators of torch (on every device), Python and NumPy, as a tree of plain values."""
    version, words, gauss = random.getstate()
    name, key, *numbers = cast(tuple[Any, ...], np.random.get_state())
    return {
        "torch": torch.get_rng_state(),
        "devices": _device_states(),
        "python": [version, torch.tensor(words), gauss],
        "numpy": [name, torch.tensor(key.astype(np.int64)), *numbers],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Make the global generators what `random_state` told."""
    torch.set_rng_state(state["torch"])
    _restore_devices(state["devices"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, key, *numbers = state["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), *numbers))


def set_epoch(loader: Any, epoch: int, seed: int) -> None:
    """Prepare *loader* for *epoch*: call its ``set_epoch`` and seed its generator, or those of its samplers."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)
    each: Any
    for each in {id(each): each for each in (loader, *samplers)}.values():
        if hasattr(each, "set_epoch"):
            each.set_epoch(epoch)
        generator = getattr(each, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)


def _device_states() -> list[Tensor]:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return list(torch.cuda.get_rng_state_all())
    if torch.backends.mps.is_available():
        return [torch.mps.get_rng_state()]
    return []


def _restore_devices(states: list[Tensor]) -> None:
    if torch.cuda.is_available() and len(states) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states)
    elif states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states[0])
