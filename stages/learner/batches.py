"""The batches of one pass over a loader, on the device of the model."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import count
from signal import SIGINT
from traceback import walk_tb
from typing import Any, Protocol, Self

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from stages.contracts.errors import BuilderError
from stages.contracts.placement import move
from stages.contracts.plugins import OptionalAttributes
from stages.devices import STREAM_DEVICES, StagingRing, copy_in_turn, find_copier
from stages.devices.rng import HostRandomState, get_rng_state
from stages.distributed import RankGroup, Share, iterate_shares
from stages.optim.torch_patches import check
from stages.system.processes import block_signals

STAGED_BATCHES = 3
"""Batches that are in pinned memory at the same time, as with the default `fit.prefetch` of 2."""

log = logging.getLogger(__name__)


class Loader(Protocol):
    """An iterable over the batches of an epoch: `stages.data.DataLoader` or `torch.utils.data.DataLoader`.

    Its ``__len__`` is the number of batches; it is optional, as for a DataLoader of an `IterableDataset`.
    """

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches."""


@dataclass(frozen=True)
class LoaderOptions(OptionalAttributes):
    """The optional attributes of a loader or a sampler, and their defaults."""

    set_device: Callable[[torch.device], None] | None = None
    iterate_deferred: Callable[[], Iterable[Any]] | None = None
    set_epoch: Callable[[int], None] = lambda _: None
    set_position: Callable[[int], None] | None = None
    set_share: Callable[..., None] | None = None
    count_samples: Callable[[int], int] | None = None
    loads_shares: bool = True
    has_ignored_targets: bool = True
    persistent_workers: bool = False
    num_workers: int = 0
    in_order: bool = True
    dataset: Any = None
    generator: Any = None
    sampler: Any = None
    batch_sampler: Any = None

    @property
    def samplers(self) -> tuple[Any, ...]:
        """The samplers of the loader, which may be None."""
        return self.sampler, self.batch_sampler, LoaderOptions.of(self.batch_sampler).sampler


def iterate_on_device(loader: Any, device: torch.device, *, defers: bool = False) -> Iterable[Any]:
    """Return an iterable over the batches of *loader* on *device*; with *defers*, also of a `DeferredBatch`.

    Batches of a loader without ``set_device`` are copied when they are requested: on CUDA and XPU through
    pinned memory and on a side stream, so that neither this process nor the device waits for the copy. No
    thread requests them, because the code of a user may draw from the global generators.
    """
    options = LoaderOptions.of(loader)
    if options.set_device is not None:
        options.set_device(device)
        return options.iterate_deferred() if defers and options.iterate_deferred else loader
    batches: Iterable[Any] = TorchBatches(loader) if isinstance(loader, DataLoader) else loader
    if device.type in STREAM_DEVICES:
        return copy_in_turn(iter(batches), StagingRing(find_copier(device), STAGED_BATCHES))
    return batches if device.type == "cpu" else (move(batch, device) for batch in batches)


@dataclass(frozen=True)
class Division:
    """How the ranks of *group* divide the batches of a loader."""

    group: RankGroup
    first: int = 0
    """The number of batches before the position of the loader."""
    fills_empty: bool = False
    """True if a rank without a sample of a batch gets the first one."""
    random_state: HostRandomState | None = None
    """The state from which a loader without `loads_shares` draws, the same on all ranks; None for their own.

    A loader that shuffles with the global generators would otherwise have another order on each rank.
    """
    defers: bool = False
    """True if one process gathers a `DeferredBatch` itself."""


def iterate_rank(loader: Any, device: torch.device, division: Division) -> Iterable[Any]:
    """Return what `iterate_on_device` does; with several ranks, this rank's `Share` of each batch.

    Raises `BuilderError` if *loader* divides the samples itself.
    """
    group, fills_empty = division.group, division.fills_empty
    if group.size == 1:
        return iterate_on_device(loader, device, defers=division.defers)
    if loads_shares(loader):
        loader.set_share(group.rank, group.size, fills_empty=fills_empty)
        samples = map(loader.count_samples, count(division.first))
        return map(Share, iterate_on_device(loader, device), samples)
    _check_sampler(loader)
    batches = _load(loader, division.random_state or HostRandomState(get_rng_state([])))
    shares = iterate_shares(batches, group.rank, group.size, fills_empty=fills_empty)
    return (Share(None if batch is None else move(batch, device), samples) for batch, samples in shares)


def loads_shares(loader: Loader) -> bool:
    """Return whether *loader* can load the share of one rank, as most of `stages.data.DataLoader` do."""
    options = LoaderOptions.of(loader)
    return bool(options.set_share and options.count_samples and options.loads_shares)


def _load(loader: Loader, random_state: HostRandomState) -> Iterator[Any]:
    """Return an iterator over the batches of *loader*, which draws from *random_state*, also now."""
    with random_state.use():
        batches = iter(TorchBatches(loader) if isinstance(loader, DataLoader) else loader)
    return _draw(batches, random_state)


def _draw(batches: Iterator[Any], random_state: HostRandomState) -> Iterator[Any]:
    end = object()
    while True:
        with random_state.use():
            batch = next(batches, end)
        if batch is end:
            return
        yield batch


def _check_sampler(loader: Any) -> None:
    """Raise `BuilderError` if *loader* has a `DistributedSampler`, whose batches would be divided again."""
    if any(isinstance(sampler, DistributedSampler) for sampler in LoaderOptions.of(loader).samplers):
        raise BuilderError(
            "the loader has a DistributedSampler, which divides the samples, and the ranks divide each batch "
            "again. Leave the sampler out, and set the batch size of all ranks together"
        )


def find_batch_sizes(loader: Any) -> list[int]:
    """Return the number of samples of the first and the last batch of *loader*, if it is known before."""
    count_samples = LoaderOptions.of(loader).count_samples
    if count_samples is not None and isinstance(loader, Sized):
        return [count_samples(number) for number in {0, len(loader) - 1}]
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return []
    size, sampler = loader.batch_size, loader.sampler
    if size is None or not isinstance(sampler, Sized):
        return []
    samples = len(sampler)
    return [size] if loader.drop_last else [min(samples, size), samples % size or size]


def reset_share(loaders: Iterable[Any]) -> None:
    """Have *loaders* load all samples of each batch again."""
    for loader in loaders:
        if (set_share := LoaderOptions.of(loader).set_share) is not None:
            set_share(0, 1)


def check_workers(*loaders: Loader) -> None:
    """Log a warning for *loaders* with persistent workers, which are restarted, or batches in any order."""
    options = [*map(LoaderOptions.of, loaders)]
    if any(option.num_workers > 1 and not option.in_order for option in options):
        log.warning(
            "the workers of a DataLoader with in_order=False return each batch when it is ready, so a "
            "resumed run will not equal an uninterrupted one. Set in_order=True for an exact resume"
        )
    if any(option.persistent_workers for option in options):
        log.warning(
            "the workers of a DataLoader with persistent_workers=True are restarted for each epoch, so that "
            "a resumed run equals an uninterrupted one. Set persistent_workers=False to avoid this warning"
        )


class TorchBatches:
    """An iterator over one pass of a `torch.utils.data.DataLoader`.

    The iterator of torch ends at any StopIteration, also at one that the dataset raised. Here such an error
    is the cause of a RuntimeError, as in a generator. Persistent workers are restarted for each pass, because
    their generators continue from the previous pass, which a resumed run could not repeat.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if loader.persistent_workers:
            check()
            loader._iterator = None  # noqa: SLF001  ends the workers; torch has no public API for it
        self._loader = loader
        with block_signals(SIGINT):  # so that Ctrl-C does not end the workers, each with a traceback
            self._batches = iter(loader)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration as error:
            if _is_of_user(error, self._loader):
                dataset = type(self._loader.dataset).__name__
                raise RuntimeError(f"{dataset} or its collate_fn raised StopIteration") from error
            raise


def _is_of_user(error: StopIteration, loader: DataLoader[Any]) -> bool:
    """Return whether *error* was raised while a batch was loaded, and not by the end of the sampler."""
    modules = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    if "torch._utils" in modules:  # raised in a worker, and reraised in this process
        return True
    fetch = "torch.utils.data._utils.fetch"
    if isinstance(loader.dataset, IterableDataset):  # it also ends with a StopIteration
        return fetch in modules[:-1] and loader.batch_sampler is not None
    return fetch in modules
