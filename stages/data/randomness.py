"""The random numbers that data sets and batchers draw: torch's, on the CPU, Python's and NumPy's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from stages.contracts.seeds import derive_seed


@contextmanager
def random_state_kept() -> Iterator[None]:
    """What the block draws or seeds is as if it had not been: the states are put back when it ends."""
    state, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(python)
        np.random.set_state(numpy)


def seed_random_state(seed: int, *path: int | str) -> None:
    """What is drawn next depends on *seed* and *path* alone. The devices' generators are left alone."""
    derived = derive_seed(seed, *path)
    torch.default_generator.manual_seed(derived)  # torch.manual_seed would seed CUDA's as well
    random.seed(derived)
    np.random.seed(derived % 2**32)
