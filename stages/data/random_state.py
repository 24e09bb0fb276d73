"""Seeds of the global generators of torch on the CPU, of Python and of NumPy."""

import random

import numpy as np
import torch

from stages.contracts.seeds import derive_seed


def seed_random_state(seed: int, *path: int | str) -> None:
    """Seed torch on the CPU, Python and NumPy from *seed* and *path*. Generators of devices are unchanged."""
    seed_generators(derive_seed(seed, *path))


def seed_generators(derived: int) -> None:
    """Seed torch on the CPU, Python and NumPy with *derived*, an integer of 63 bits."""
    torch.default_generator.manual_seed(derived)  # torch.manual_seed would also seed CUDA
    random.seed(derived)
    np.random.seed(derived % 2**32)
