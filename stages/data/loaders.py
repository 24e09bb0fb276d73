"""Loaders, whose batches depend only on the seed and the epoch."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import torch

from stages.contracts.errors import CheckpointError
from stages.contracts.outputs import is_counted
from stages.contracts.placement import DeferredBatch, load, move
from stages.data.augmentation import Augmentation, Augmenter, check_augmentation
from stages.data.batchers import (
    Batch,
    Batcher,
    GatherBatcher,
    NormalizeBatcher,
    as_batcher,
    is_per_sample,
    measure_lengths,
)
from stages.data.datasets import Dataset, TensorDataset
from stages.data.host_loader import BucketOrder, HostLoader, Order
from stages.data.trees import Ragged, map_leaves
from stages.devices import STREAM_DEVICES, StagingRing, copy_in_turn, find_copier, prefetch

CPU = torch.device("cpu")
MAX_WORKERS_PER_CPU = 8
"""More processes only wait for each other, even if they mostly wait for a disk."""
RESIDENT_SHARE = 0.25

log = logging.getLogger(__name__)


class DataLoaderBuilder:
    """A builder of loaders. Burn's builder of the same name:

    ```python
    loader = DataLoaderBuilder(batcher).batch_size(64).shuffle(42).num_workers(4).build(dataset)
    ```
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
        self._views = 1
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
        """Change each sample before the batcher receives it. Default: no change.

        Each of *augmentations* is a built-in kind for images, such as `RandomCrop`, which moves masks and
        boxes too, or is called with the input of one sample, or with the sample if it has a true attribute
        ``whole_sample``. Their random numbers depend on the seed of `shuffle`, the epoch and the index of
        the sample. Batches of an augmented dataset are always made on the CPU. Raises `BuilderError` for
        an augmentation that cannot be called.
        """
        self._augmentations = [check_augmentation(augmentation) for augmentation in augmentations]
        return self

    def views(self, views: int) -> Self:
        """Set the number of views of the inputs of a sample, each augmented by itself. Default: 1.

        The inputs of a batch with more than one are `Views`, a tuple. Raises `ValueError` if it is below 1.
        """
        if views < 1:
            raise ValueError(f"views must be at least 1; found {views}")
        self._views = views
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
        options = self._batch_size, self._seed, self._limit
        order = Order(len(dataset), *options)
        if self._is_bucketed:
            order = BucketOrder(measure_lengths(dataset, self._batcher), *options)
        augmenter = None
        if self._augmentations or self._views > 1:
            kinds = getattr(dataset, "kinds", None)
            augmenter = Augmenter(self._augmentations, self._seed or 0, kinds=kinds, views=self._views)
            if type(dataset) is TensorDataset:
                augmenter.check(dataset)
        host = HostLoader(dataset, self._batcher, order, _limit_workers(self._workers), augmenter)
        loader = DataLoader(host, self._transfer)
        loader.set_device(self._device)
        return loader


@dataclass(frozen=True)
class Transfer:
    """The transfer of the batches of a loader to an accelerator. It changes no batch."""

    prefetch: int = 2
    """Batches that are copied before they are used; 0 for none."""
    resident: bool | Literal["auto"] = "auto"
    """True to keep the split on the device; ``auto`` if it takes less than a quarter of the free memory."""


class DeviceLoader:
    """The batches of a `HostLoader` on an accelerator, which also does the work of a `NormalizeBatcher`."""

    def __init__(self, host: HostLoader, device: torch.device, transfer: Transfer) -> None:
        self._host = host
        self._finish: Callable[[Batch], Batch] | None = None
        if type(host.batcher) is NormalizeBatcher:
            self._host, self._finish = host.replace(batcher=GatherBatcher(host.batcher)), host.batcher.finish
        self._device = device
        self._transfer = transfer
        self._ahead = transfer.prefetch if device.type in STREAM_DEVICES else 0
        """Batches that are copied before they are used."""

    def batches(self, epoch: int, first: int) -> Iterator[Any]:
        """Return an iterator over the batches of *epoch*, counted from 1, from batch *first* on.

        Batches of which the rank has no sample are left out.
        """
        return map(load, self.iterate_deferred(epoch, first))

    def iterate_deferred(self, epoch: int, first: int) -> Iterator[Any]:
        """Return the same batches, each a `DeferredBatch` if the split is on the device."""
        if self._gather is not None:
            indices = filter(len, self._host.order.batches(epoch, first, self._device))
            return (DeferredBatch(rows, self._gather) for rows in indices)
        batches = self._copy(self._source.batches(epoch, first))
        return map(self._finish, batches) if self._finish else batches

    @cached_property
    def _source(self) -> HostLoader:
        """The loader of the batches to copy, which gathers samples in memory to copy from if it can."""
        host, dataset = self._host, self._host.dataset
        is_gathered = type(host.batcher) is GatherBatcher and not (host.workers or host.augmenter)
        if not (self._ahead and is_gathered and type(dataset) is TensorDataset):
            return host
        allocate = find_copier(self._device).allocate
        return host.replace(dataset=TensorDataset(dataset.inputs, dataset.targets, allocate))

    def _copy(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return *batches* on the device.

        No thread runs a user's code: it may draw from the global generators, as the model does.
        """
        if not self._ahead:
            return (move(batch, self._device) for batch in batches)
        ring = StagingRing(find_copier(self._device), self._ahead + 1)
        if self._host.runs_user_code:
            return copy_in_turn(batches, ring)
        return prefetch(batches, ring, self._ahead)

    @cached_property
    def _gather(self) -> Callable[[torch.Tensor], Batch] | None:
        """Returns the batch of some indices on the device; None if batches are copied from the host."""
        split, finish = self._load_split(), self._finish
        if split is None or finish is None:
            return None
        gather = self._host.batcher.batch
        return lambda indices: finish(gather(split.__getitems__(indices)))

    def _load_split(self) -> TensorDataset | None:
        """Return a copy of the dataset on the device; None if batches are copied from the host."""
        dataset, resident = self._host.dataset, self._transfer.resident
        if not resident:
            return None
        is_augmented = self._host.augmenter is not None
        is_ragged = type(dataset) is TensorDataset and any(
            isinstance(leaf, Ragged) for leaf in dataset.leaves
        )
        if type(dataset) is not TensorDataset or self._finish is None or is_augmented or is_ragged:
            if resident is True:
                log.warning(
                    "resident is true, but only a TensorDataset of tensors with a NormalizeBatcher and "
                    "without augmentation can be resident on %s: batches are copied from the CPU",
                    self._device,
                )
            return None
        if resident == "auto" and not fits(dataset, free_memory(self._device)):
            return None
        inputs, targets = (
            map_leaves(lambda leaf: leaf.to(self._device), tree) for tree in (dataset.inputs, dataset.targets)
        )
        return TensorDataset(inputs, targets)


def fits(dataset: TensorDataset, free: int) -> bool:
    """Return whether *dataset* takes less than `RESIDENT_SHARE` of *free* bytes."""
    size: int = sum(leaf.nbytes for leaf in dataset.leaves)
    return size < RESIDENT_SHARE * free


def free_memory(device: torch.device) -> int:
    """Return the free memory of *device* in bytes; 0 if it is unknown."""
    if device.type in STREAM_DEVICES:
        free, _ = torch.get_device_module(device).mem_get_info(device)
        return int(free)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return 0


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
        is_read = type(self.batcher) in (NormalizeBatcher, GatherBatcher)
        if type(dataset) is not TensorDataset or not dataset.is_plain or not is_read:
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
            host = host.replace(batcher=GatherBatcher(host.batcher))
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
