"""The order in which the samples of a split form the batches of an epoch."""

import math
from collections.abc import Iterator

import torch

from stages.contracts.seeds import derive_seed

CPU = torch.device("cpu")
MAX_SPLIT_BATCHES = 1024
"""The number of batches whose indices are split with one call, which bounds the memory."""


class Order:
    """The samples of each batch of an epoch: a pure function of (seed, epoch)."""

    def __init__(self, samples: int, batch_size: int, seed: int | None) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self) -> int:
        return math.ceil(self.samples / self.batch_size)

    def batches(self, epoch: int, first: int = 0, device: torch.device = CPU) -> Iterator[torch.Tensor]:
        """Yield the indices of each batch, int64, from batch *first* (counted from 0) to the last.

        They are copied to *device* once for the epoch.
        """
        if self.seed is None:
            order = torch.arange(self.samples, device=device)
        else:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            order = torch.randperm(self.samples, generator=generator).to(device)
        for start in range(first * self.batch_size, self.samples, MAX_SPLIT_BATCHES * self.batch_size):
            yield from torch.split(
                order[start : start + MAX_SPLIT_BATCHES * self.batch_size], self.batch_size
            )
