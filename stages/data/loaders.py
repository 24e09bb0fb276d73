"""Loaders, whose batches depend only on the seed and the epoch."""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import torch

from stages.contracts.errors import CheckpointError
from stages.contracts.placement import move
from stages.contracts.seeds import derive_seed
from stages.data.batchers import Batcher, as_batcher
from stages.data.datasets import Dataset
from stages.data.fetcher import Fetcher, Place
from stages.data.worker_pool import WorkerPool

CPU = torch.device("cpu")
MAX_SPLIT_BATCHES = 1024
"""The number of batches whose indices are split with one call, which bounds the memory."""


MAX_WORKERS_PER_CPU = 8
"""More processes only wait for each other, even if they mostly wait for a disk."""

log = logging.getLogger(__name__)


class DataLoaderBuilder:
    """A builder of loaders. Burn's builder of the same name::

    loader = DataLoaderBuilder(batcher).batch_size(64).shuffle(42).num_workers(4).build(dataset)
    """

    def __init__(self, batcher: Batcher | Callable[[Sequence[Any]], Any]) -> None:
        """Use *batcher*, or a function of the items of a batch such as PyTorch's ``collate_fn``."""
        self._batcher = as_batcher(batcher)
        self._batch_size = 1
        self._seed: int | None = None
        self._workers = 0
        self._device = CPU

    def batch_size(self, batch_size: int) -> Self:
        """Set the number of samples in a batch; the last batch of an epoch may be smaller. Default: 1."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; found {batch_size}")
        self._batch_size = batch_size
        return self

    def shuffle(self, seed: int) -> Self:
        """Shuffle each epoch, depending on *seed* and the epoch. Default: the order of the dataset."""
        self._seed = seed
        return self

    def num_workers(self, num_workers: int) -> Self:
        """Set the number of worker processes, which do not change the batches. Default: 0, this process.

        At most `MAX_WORKERS_PER_CPU` processes for each CPU, and one for each batch, are started.
        """
        if num_workers < 0:
            raise ValueError(f"num_workers must be at least 0; found {num_workers}")
        self._workers = num_workers
        return self

    def set_device(self, device: torch.device | str) -> Self:
        """Set the device of the batches. Default: the device of the learner."""
        self._device = torch.device(device)
        return self

    def build(self, dataset: Dataset) -> "DataLoader":
        """Return a loader of *dataset*."""
        order = Order(len(dataset), self._batch_size, self._seed)
        return DataLoader(dataset, self._batcher, order, _limit_workers(self._workers), self._device)


class Order:
    """The samples of each batch of an epoch: a pure function of (seed, epoch)."""

    def __init__(self, samples: int, batch_size: int, seed: int | None) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self) -> int:
        return math.ceil(self.samples / self.batch_size)

    def batches(self, epoch: int, first: int = 0) -> Iterator[torch.Tensor]:
        """Yield the indices of each batch, int64, from batch *first* (counted from 0) to the last."""
        if self.seed is None:
            order = torch.arange(self.samples)
        else:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            order = torch.randperm(self.samples, generator=generator)
        for start in range(first * self.batch_size, self.samples, MAX_SPLIT_BATCHES * self.batch_size):
            yield from torch.split(
                order[start : start + MAX_SPLIT_BATCHES * self.batch_size], self.batch_size
            )


class DataLoader:
    """An iterable over the batches of one epoch, which `set_epoch` selects."""

    def __init__(
        self, dataset: Dataset, batcher: Batcher, order: Order, workers: int, device: torch.device
    ) -> None:
        self.dataset = dataset
        self.batcher = batcher
        self.order = order
        self.workers = workers
        self.device = device
        self.epoch = 1
        self._first = 0
        self._pool: WorkerPool | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """Select *epoch*, counted from 1, for the next iteration."""
        self.epoch = epoch

    def set_position(self, batch: int) -> None:
        """Start only the next iteration at *batch*, counted from 0, without loading earlier batches.

        The batches are the last ones of a complete iteration; none if *batch* is the number of batches.
        Raises `CheckpointError` if *batch* is larger.
        """
        if not 0 <= batch <= len(self):
            raise CheckpointError(
                f"cannot resume after batch {batch}: an epoch of this loader has {len(self)} batches. Use "
                "the data and the batch size of the checkpoint"
            )
        self._first = batch

    def set_device(self, device: torch.device) -> None:
        """Move all following batches to *device*."""
        self.device = device

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, 0
        batches = self._from_workers(first) if self.workers else self._from_this_process(first)
        return batches if self.device == CPU else (move(batch, self.device) for batch in batches)

    def _from_this_process(self, first: int) -> Iterator[Any]:
        return map(self._fetcher().__getitem__, self._places(first))

    def _from_workers(self, first: int) -> Iterator[Any]:
        """Return the same batches from worker processes, which are kept for the next pass."""
        pool, self._pool = self._pool, None
        if pool is None:
            pool = WorkerPool(self._fetcher(), min(self.workers, len(self)))
        return self._keep_pool(pool, pool.batches(self._places(first)))

    def _keep_pool(self, pool: WorkerPool, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield *batches*, and keep *pool* unless they end with an error; a pass of it may be in progress."""
        with suppress(GeneratorExit):
            yield from batches
        self._pool = pool

    def _places(self, first: int) -> Iterator[Place]:
        epoch = self.epoch
        return (
            (epoch, position, indices)
            for position, indices in enumerate(self.order.batches(epoch, first), start=first)
        )

    def _fetcher(self) -> Fetcher:
        return Fetcher(self.dataset, self.batcher, self.order.seed or 0)


def _limit_workers(workers: int) -> int:
    """Return *workers*, or the largest useful number with a warning."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = MAX_WORKERS_PER_CPU * cpus
    if workers <= limit:
        return workers
    log.warning(
        "num_workers is %d, more than %d for each of %d CPUs; using %d workers, which gives the same batches",
        workers,
        MAX_WORKERS_PER_CPU,
        cpus,
        limit,
    )
    return limit
