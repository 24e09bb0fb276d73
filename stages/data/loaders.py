"""Loaders, whose batches depend only on the seed and the epoch."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import torch

from stages.contracts.errors import CheckpointError
from stages.contracts.outputs import is_counted
from stages.data.augmentation import Augmentation, Augmenter, check_augmentation
from stages.data.batchers import Batcher, GatherBatcher, NormalizeBatcher, as_batcher, is_per_sample
from stages.data.datasets import Dataset, TensorDataset
from stages.data.device_loader import DeviceLoader, Transfer
from stages.data.host_loader import HostLoader
from stages.data.order import BucketOrder, Order
from stages.data.padding import measure_lengths

CPU = torch.device("cpu")
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
        self._limit: int | None = None
        self._device = CPU
        self._transfer = Transfer()
        self._augmentations: list[Augmentation] = []
        self._is_bucketed = False

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

    def augment(self, augmentations: Sequence[Augmentation]) -> Self:
        """Change the input of each sample before the batcher receives it. Default: no change.

        Each of *augmentations* is a built-in kind for images, such as `RandomCrop`, or is called with the
        input of one sample. Their random numbers depend on the seed of `shuffle`, the epoch and the index of
        the sample. Batches of an augmented dataset are always made on the CPU. Raises `BuilderError` for
        an augmentation that cannot be called.
        """
        self._augmentations = [check_augmentation(augmentation) for augmentation in augmentations]
        return self

    def bucket(self) -> Self:
        """Combine samples of similar length to a batch, so that little is padded. Default: any samples.

        The batches depend on the seed of `shuffle` and the epoch; without a seed they are sorted by length.
        The lengths are the attribute ``lengths`` of the dataset if it has one, and otherwise those of the
        inputs, which are read once.
        """
        self._is_bucketed = True
        return self

    def limit_batches(self, limit: int | None) -> Self:
        """Set the maximum number of batches in an epoch, which are the first of its order. Default: all."""
        if limit is not None and limit < 1:
            raise ValueError(f"limit_batches must be at least 1; found {limit}")
        self._limit = limit
        return self

    def set_device(self, device: torch.device | str) -> Self:
        """Set the device of the batches. Default: the device of the learner."""
        self._device = torch.device(device)
        return self

    def prefetch(self, prefetch: int) -> Self:
        """Set the number of batches that are copied to an accelerator before they are used; 0 for none.

        Default: 2. It changes no batch, and has no effect on a CPU.
        """
        if prefetch < 0:
            raise ValueError(f"prefetch must be at least 0; found {prefetch}")
        self._transfer = replace(self._transfer, prefetch=prefetch)
        return self

    def resident(self, resident: bool | Literal["auto"]) -> Self:  # noqa: FBT001  the values of a param
        """Set whether an accelerator holds the entire dataset, so that batches are gathered there.

        Default: ``auto``, if the dataset takes less than a quarter of the free memory. It needs a
        `TensorDataset` without augmentation and a `NormalizeBatcher`, changes no batch, and has no effect on
        a CPU.
        """
        if resident not in (True, False, "auto"):
            raise ValueError(f"resident must be True, False or 'auto'; found {resident!r}")
        self._transfer = replace(self._transfer, resident=resident)
        return self

    def build(self, dataset: Dataset) -> "DataLoader":
        """Return a loader of *dataset*.

        Raises `BuilderError` if built-in augmentation cannot change its inputs, or if they have no length for
        `bucket`.
        """
        order = Order(len(dataset), self._batch_size, self._seed, self._limit)
        if self._is_bucketed:
            order = BucketOrder(
                measure_lengths(dataset, self._batcher), self._batch_size, self._seed, self._limit
            )
        augmenter = Augmenter(self._augmentations, self._seed or 0) if self._augmentations else None
        if augmenter is not None and type(dataset) is TensorDataset:
            augmenter.check(dataset)
        host = HostLoader(dataset, self._batcher, order, _limit_workers(self._workers), augmenter)
        loader = DataLoader(host, self._transfer)
        loader.set_device(self._device)
        return loader


class DataLoader:
    """An iterable over the batches of one epoch, which `set_epoch` selects."""

    def __init__(self, host: HostLoader, transfer: Transfer) -> None:
        self.dataset = host.dataset
        self.batcher = host.batcher
        self.order = host.order
        self.workers = host.workers
        self.transfer = transfer
        self.device = CPU
        self.epoch = 1
        self._first = 0
        self._host = host
        self._source: HostLoader | DeviceLoader = host

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
        if device == self.device:
            return
        self.device = device
        self._source = self._host if device == CPU else DeviceLoader(self._host, device, self.transfer)

    @cached_property
    def has_ignored_targets(self) -> bool:
        """False if the targets are known before they are loaded, and none of them is -100."""
        dataset = self.dataset
        if type(dataset) is not TensorDataset or type(self.batcher) not in (NormalizeBatcher, GatherBatcher):
            return True
        return not bool(is_counted(dataset.targets).all())

    @property
    def loads_shares(self) -> bool:
        """True if several ranks may load only their samples of each batch: see `is_per_sample`."""
        return is_per_sample(self.batcher)

    def set_share(self, rank: int, size: int, *, fills_empty: bool = False) -> None:
        """Load only the samples that *rank* of *size* ranks takes of each batch.

        If it takes none, the batch is None, or with *fills_empty* the first sample.
        """
        self.order.share, self.order.fills_empty = (rank, size), fills_empty

    def count_samples(self, batch: int) -> int:
        """Return the number of samples of *batch*, counted from 0, on all ranks together."""
        return self.order.count_samples(batch)

    def read_samples(self, epoch: int, indices: Sequence[int]) -> Any:
        """Return one batch of the samples at *indices* as in *epoch*, on the CPU.

        A `NormalizeBatcher` does not normalize them.
        """
        host = self._host
        if type(host.batcher) is NormalizeBatcher:
            host = host.replace(batcher=GatherBatcher())
        return host.read(epoch, indices)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._source.batches)

    def iterate_deferred(self) -> Iterator[Any]:
        """Return an iterator over the batches, of which those on the device are a `DeferredBatch`."""
        source = self._source
        return self._iterate(source.batches if isinstance(source, HostLoader) else source.iterate_deferred)

    def _iterate(self, read: Callable[[int, int], Iterator[Any]]) -> Iterator[Any]:
        first, self._first = self._first, 0
        batches = read(self.epoch, first)
        if all(map(self.order.has_share, (0, len(self) - 1))):  # the last batch is the smallest
            return batches
        return (
            next(batches) if self.order.has_share(iteration) else None
            for iteration in range(first, len(self))
        )


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
