"""The order in which the samples of a split form the batches of an epoch."""

import math
from collections.abc import Iterator

import torch

from stages.contracts.placement import share_of
from stages.contracts.seeds import derive_seed

CPU = torch.device("cpu")
MAX_SPLIT_BATCHES = 1024
"""The number of batches whose indices are split with one call, which bounds the memory."""

POOL_BATCHES = 50
"""The number of batches whose samples are sorted by length together: more pad less, and shuffle less."""


class Order:
    """The samples of each batch of an epoch: a pure function of (seed, epoch).

    An epoch has at most *limit* batches, which are the first ones without it.
    """

    def __init__(self, samples: int, batch_size: int, seed: int | None, limit: int | None = None) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed
        self.limit = limit
        self.share = 0, 1
        """The rank whose samples of each batch are yielded, and the number of ranks."""
        self.fills_empty = False
        """True to yield the first sample of a batch of which the rank has none."""

    def __len__(self) -> int:
        batches = math.ceil(self.samples / self.batch_size)
        return batches if self.limit is None else min(batches, self.limit)

    def batches(self, epoch: int, first: int = 0, device: torch.device = CPU) -> Iterator[torch.Tensor]:
        """Yield the indices of each batch, int64, from batch *first* (counted from 0) to the last.

        They are those of the rank, which may have none. They are copied to *device* once for the epoch.
        """
        order = self._arrange(epoch, device)[: len(self) * self.batch_size]
        for start in range(first * self.batch_size, len(order), MAX_SPLIT_BATCHES * self.batch_size):
            batches = torch.split(order[start : start + MAX_SPLIT_BATCHES * self.batch_size], self.batch_size)
            yield from batches if self.share[1] == 1 else map(self._take_share, batches)

    def count_samples(self, batch: int) -> int:
        """Return the number of samples of *batch*, counted from 0, on all ranks together."""
        return min(self.batch_size, self.samples - batch * self.batch_size)

    def has_share(self, batch: int) -> bool:
        """Return whether the rank takes a sample of *batch*, counted from 0."""
        return self.fills_empty or len(self._take_share(torch.arange(self.count_samples(batch)))) > 0

    def _take_share(self, indices: torch.Tensor) -> torch.Tensor:
        taken = indices[share_of(len(indices), *self.share)]
        return indices[:1] if self.fills_empty and not len(taken) else taken

    def _arrange(self, epoch: int, device: torch.device) -> torch.Tensor:
        """Return the indices of all samples in the order of *epoch*, on *device*."""
        if self.seed is None:
            return torch.arange(self.samples, device=device)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        return torch.randperm(self.samples, generator=generator).to(device)


class BucketOrder(Order):
    """An order in which the samples of a batch have similar *lengths*, so that little is padded.

    Groups of `POOL_BATCHES` batches of the shuffled samples are sorted by length and divided into batches,
    and the batches are shuffled; the last batch of the epoch may be smaller. Without a seed all samples are
    sorted.
    """

    def __init__(
        self, lengths: torch.Tensor, batch_size: int, seed: int | None, limit: int | None = None
    ) -> None:
        super().__init__(len(lengths), batch_size, seed, limit)
        self._lengths = lengths

    def _arrange(self, epoch: int, device: torch.device) -> torch.Tensor:
        """Return the indices of all samples in the order of *epoch*, on *device*."""
        shuffled = super()._arrange(epoch, CPU)
        if self.seed is None:
            return self._sort(shuffled).to(device)
        pools = torch.split(shuffled, POOL_BATCHES * self.batch_size)
        ordered = torch.cat([self._sort(pool) for pool in pools])
        full = self.samples // self.batch_size
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "buckets", epoch))
        batches = ordered[: full * self.batch_size].view(full, self.batch_size)
        batches = batches[torch.randperm(full, generator=generator)]
        return torch.cat([batches.flatten(), ordered[full * self.batch_size :]]).to(device)

    def _sort(self, indices: torch.Tensor) -> torch.Tensor:
        return indices[self._lengths[indices].argsort(stable=True)]
