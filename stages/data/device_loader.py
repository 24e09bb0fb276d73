"""The batches of a split on an accelerator: gathered there if the split fits, else copied from the host."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from stages.contracts.placement import DeferredBatch, load, move
from stages.data.batchers import Batch, GatherBatcher, NormalizeBatcher
from stages.data.datasets import TensorDataset
from stages.data.host_loader import HostLoader
from stages.devices import STREAM_DEVICES, StagingRing, copy_in_turn, find_copier, prefetch

RESIDENT_SHARE = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Transfer:
    """The transfer of the batches of a loader to an accelerator. It changes no batch."""

    prefetch: int = 2
    """Batches that are copied before they are used; 0 for none."""
    resident: bool | Literal["auto"] = "auto"
    """True to keep the split on the device; ``auto`` if it takes less than a quarter of the free memory."""


class DeviceLoader:
    """The batches of a `HostLoader` on an accelerator, where a `NormalizeBatcher` also converts them."""

    def __init__(self, host: HostLoader, device: torch.device, transfer: Transfer) -> None:
        self._host = host
        self._finish: Callable[[Batch], Batch] | None = None
        if type(host.batcher) is NormalizeBatcher:
            self._host, self._finish = host.replace(batcher=GatherBatcher()), host.batcher.finish
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
        return lambda indices: finish(NormalizeBatcher.gather(split.__getitems__(indices)))

    def _load_split(self) -> TensorDataset | None:
        """Return a copy of the dataset on the device; None if batches are copied from the host."""
        dataset, resident = self._host.dataset, self._transfer.resident
        if not resident:
            return None
        is_augmented = self._host.augmenter is not None
        if type(dataset) is not TensorDataset or self._finish is None or is_augmented:
            if resident is True:
                log.warning(
                    "resident is true, but only a TensorDataset with a NormalizeBatcher and without "
                    "augmentation can be resident on %s: batches are copied from the CPU",
                    self._device,
                )
            return None
        if resident == "auto" and not fits(dataset, free_memory(self._device)):
            return None
        return TensorDataset(dataset.inputs.to(self._device), dataset.targets.to(self._device))


def fits(dataset: TensorDataset, free: int) -> bool:
    """Return whether *dataset* takes less than `RESIDENT_SHARE` of *free* bytes."""
    return dataset.inputs.nbytes + dataset.targets.nbytes < RESIDENT_SHARE * free


def free_memory(device: torch.device) -> int:
    """Return the free memory of *device* in bytes; 0 if it is unknown."""
    if device.type in STREAM_DEVICES:
        free, _ = torch.get_device_module(device).mem_get_info(device)
        return int(free)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return 0
