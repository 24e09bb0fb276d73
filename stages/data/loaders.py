"""Loaders: batches that depend on the seed and the epoch, and on nothing else."""

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from signal import SIGINT
from typing import Any, Self

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from stages.contracts.errors import CheckpointError
from stages.contracts.placement import move
from stages.contracts.seeds import derive_seed
from stages.contracts.worker_signals import RESET, block_signals, prepare_worker
from stages.data.batchers import Batcher, as_batcher
from stages.data.datasets import Dataset
from stages.data.fetching import Fetcher

CPU = torch.device("cpu")
SPLIT_AT_ONCE = 1024
"""Batches whose indices are split off with one call: fast, and without the memory of a whole epoch."""


MAX_WORKERS_PER_CPU = 8
"""More processes only wait for each other, also if they wait for a disk most of the time."""

log = logging.getLogger(__name__)


class DataLoaderBuilder:
    """Burn's builder of the same name::

    loader = DataLoaderBuilder(batcher).batch_size(64).shuffle(42).num_workers(4).build(dataset)
    """

    def __init__(self, batcher: Batcher | Callable[[Sequence[Any]], Any]) -> None:
        """Take *batcher*, or a function of the items of a batch, as torch's ``collate_fn``."""
        self._batcher = as_batcher(batcher)
        self._batch_size = 1
        self._seed: int | None = None
        self._workers = 0
        self._device = CPU

    def batch_size(self, batch_size: int) -> Self:
        """How many samples a batch has; the last of an epoch has what is left. Default 1."""
        if batch_size < 1:
            raise ValueError(f"a batch of {batch_size} samples: it must be 1 or more")
        self._batch_size = batch_size
        return self

    def shuffle(self, seed: int) -> Self:
        """A new order every epoch, a function of *seed* and the epoch. Default: the data set's own order."""
        self._seed = seed
        return self

    def num_workers(self, num_workers: int) -> Self:
        """How many processes prepare batches; 0, the default, means this one. The batches are the same.

        At most `MAX_WORKERS_PER_CPU` for each CPU, and no more than there are batches, are started.
        """
        if num_workers < 0:
            raise ValueError(f"{num_workers} workers: it must be 0 or more")
        self._workers = num_workers
        return self

    def set_device(self, device: torch.device | str) -> Self:
        """Where the batches go. Default: the learner's device."""
        self._device = torch.device(device)
        return self

    def build(self, dataset: Dataset) -> "DataLoader":
        """A loader of *dataset*."""
        order = Order(len(dataset), self._batch_size, self._seed)
        return DataLoader(dataset, self._batcher, order, _limited(self._workers), self._device)


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
        for start in range(first * self.batch_size, self.samples, SPLIT_AT_ONCE * self.batch_size):
            yield from torch.split(order[start : start + SPLIT_AT_ONCE * self.batch_size], self.batch_size)


class DataLoader:
    """Iterates over the batches of one epoch; `set_epoch` says which."""

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

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of *epoch*, from 1."""
        self.epoch = epoch

    def set_position(self, batch: int) -> None:
        """The next iteration, and only that, begins at *batch*, from 0; nothing before it is fetched.

        What comes is what an unbroken iteration ends with: nothing where *batch* is the number of batches.
        Raises `CheckpointError` beyond that.
        """
        if not 0 <= batch <= len(self):
            raise CheckpointError(
                f"an epoch of this loader has {len(self)} batches, so none can go on after {batch} of them: "
                "the checkpoint is of other data, or of another batch size"
            )
        self._first = batch

    def set_device(self, device: torch.device) -> None:
        """Batches go to *device* from now on."""
        self.device = device

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, 0
        places = enumerate(self.order.batches(self.epoch, first), start=first)
        batches = self._from_workers(places) if self.workers else map(self._fetcher().__getitem__, places)
        return batches if self.device == CPU else (move(batch, self.device) for batch in batches)

    def _from_workers(self, places: Iterable[tuple[int, torch.Tensor]]) -> Iterator[Any]:
        """Yield the same batches, made by worker processes that leave torch's global generator alone."""
        loader: TorchDataLoader[Any] = TorchDataLoader(
            self._fetcher(),  # type: ignore[arg-type]  # a data set of batches, by structure
            batch_size=None,
            sampler=((position, indices.tolist()) for position, indices in places),
            collate_fn=_as_it_is,
            num_workers=min(self.workers, len(self)),
            generator=torch.Generator().manual_seed(derive_seed(self.order.seed or 0, self.epoch)),
            worker_init_fn=prepare_worker,
        )
        with block_signals(SIGINT, *RESET):
            return iter(loader)

    def _fetcher(self) -> Fetcher:
        return Fetcher(self.dataset, self.batcher, self.order.seed or 0, self.epoch)


def _limited(workers: int) -> int:
    """Return *workers*, or the largest useful number of them, with a warning."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = MAX_WORKERS_PER_CPU * cpus
    if workers <= limit:
        return workers
    log.warning(
        "num_workers is %d, more than %d for each of %d CPUs: %d are used, which gives the same batches",
        workers,
        MAX_WORKERS_PER_CPU,
        cpus,
        limit,
    )
    return limit


def _as_it_is(batch: Any) -> Any:
    return batch
