"""The batches of a split on the host, loaded in this process or by worker processes."""

import ctypes
import math
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing.util import Finalize
from signal import SIGINT
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader

from stages.contracts.errors import DataError
from stages.contracts.placement import share_of
from stages.data.augmentation import Augmenter
from stages.data.batchers import Batcher, GatherBatcher, NormalizeBatcher, PadBatcher
from stages.data.datasets import Dataset, ImageFileDataset, TensorDataset, to_tensor
from stages.devices.rng import derive_seed, preserve_random_state, seed_sample
from stages.system.processes import RESET, block_signals, prepare_worker

Place = tuple[int, int, Sequence[int] | Tensor, int]
"""The epoch of a batch, its position in it, counted from 0, the indices of its samples, and the rank."""


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
        return (
            self.fills_empty
            or len(self._take_share(torch.arange(self.count_samples(batch), device="cpu"))) > 0
        )

    def _take_share(self, indices: torch.Tensor) -> torch.Tensor:
        taken = indices[share_of(len(indices), *self.share)]
        return indices[:1] if self.fills_empty and not len(taken) else taken

    def _arrange(self, epoch: int, device: torch.device) -> torch.Tensor:
        """Return the indices of all samples in the order of *epoch*, on *device*."""
        if self.seed is None:
            return torch.arange(self.samples, device=device)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        return torch.randperm(self.samples, generator=generator, device="cpu").to(device)


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
        batches = batches[torch.randperm(full, generator=generator, device="cpu")]
        return torch.cat([batches.flatten(), ordered[full * self.batch_size :]]).to(device)

    def _sort(self, indices: torch.Tensor) -> torch.Tensor:
        return indices[self._lengths[indices].argsort(stable=True)]


class Fetcher:
    """A source of the batches of every epoch, in this process or, pickled, in a worker.

    The random numbers that a sample draws depend on (seed, epoch, index); those of ``__getitems__`` and of
    the batcher depend on (seed, epoch, position of the batch), and on the rank unless it is 0.
    """

    def __init__(
        self, dataset: Dataset, batcher: Batcher, seed: int, augmenter: Augmenter | None = None
    ) -> None:
        self._dataset = dataset
        self._batcher = batcher
        self._augmenter = augmenter
        self.seed = seed
        self._draws_samples = type(dataset) not in (TensorDataset, ImageFileDataset)
        self._draws_batches = type(batcher) not in (NormalizeBatcher, GatherBatcher, PadBatcher)

    @property
    def runs_user_code(self) -> bool:
        """True if the dataset, a transform or the batcher may draw from the global generators."""
        draws_inputs = self._augmenter is not None and self._augmenter.runs_user_code
        return self._draws_samples or draws_inputs or self._draws_batches

    def __getitem__(self, place: Place) -> Any:
        """Return the batch at *place* for another process, or the `DataError` that it raises."""
        try:
            return self.fetch(place)
        except DataError as error:
            return error

    def fetch(self, place: Place) -> Any:
        """Return the batch at *place*.

        Raises `RuntimeError` if the dataset or the batcher raises StopIteration, which would end the epoch,
        or SystemExit, which would end a worker without a message.
        """
        try:
            return self._batch(*place)
        except (StopIteration, SystemExit) as error:
            raise RuntimeError(
                f"batch {place[1]}: the dataset or the batcher raised {type(error).__name__}"
            ) from error

    def _batch(self, epoch: int, position: int, indices: Sequence[int] | Tensor, rank: int) -> Any:
        if self._draws_samples:
            with preserve_random_state():
                items = self._draw(epoch, to_tensor(indices).tolist(), _path_of(position, rank))
        else:
            items = self._dataset.__getitems__(indices)  # type: ignore[attr-defined]  # one of these two
        if self._augmenter is not None:
            with preserve_random_state() if self._augmenter.runs_user_code else nullcontext():
                items = self._augmenter.augment(items, epoch, indices)
        if not self._draws_batches:
            return self._batcher.batch(items)
        with preserve_random_state():
            seed_sample(self.seed, epoch, "batcher", *_path_of(position, rank))
            return self._batcher.batch(items)

    def _draw(self, epoch: int, indices: list[int], path: Sequence[int | str]) -> Any:
        fetch = getattr(self._dataset, "__getitems__", None)
        if fetch is None:
            return [self._sample(epoch, index) for index in indices]
        seed_sample(self.seed, epoch, "batch", *path)
        return fetch(indices)

    def _sample(self, epoch: int, index: int) -> Any:
        seed_sample(self.seed, epoch, index)
        return self._dataset[index]


def _path_of(position: int, rank: int) -> tuple[int | str, ...]:
    """Return the part of a seed for the batch at *position* of *rank*."""
    return (position, "rank", rank) if rank else (position,)


class WorkerPool:
    """Worker processes that run until the pool is garbage-collected or this process exits.

    They have the dataset and the batcher as they were when the pool was created. They do not use torch's
    global generator.
    """

    def __init__(self, fetcher: Fetcher, workers: int) -> None:
        may_exit = multiprocessing.RawValue(ctypes.c_bool)
        Finalize(self, setattr, (may_exit, "value", True), exitpriority=0)  # multiprocessing ends them next
        self._places = _Places()
        self._loader: TorchDataLoader[Any] = TorchDataLoader(
            fetcher,  # type: ignore[arg-type]  # structurally a dataset of batches
            batch_size=None,
            sampler=self._places,
            collate_fn=_identity,
            num_workers=workers,
            persistent_workers=True,
            generator=torch.Generator().manual_seed(fetcher.seed),
            worker_init_fn=partial(prepare_worker, may_exit),
        )
        with block_signals(SIGINT, *RESET):
            iter(self._loader)

    def batches(self, places: Iterable[Place]) -> Iterator[Any]:
        """Return an iterator over the batches at *places*; batches of an earlier call are dropped.

        It raises the `DataError` that a worker has raised, without the traceback that torch adds.
        """
        self._places.places = places
        return map(_raise_error, iter(self._loader))


def _raise_error(batch: Any) -> Any:
    """Return *batch*, or raise it if it is an error."""
    if isinstance(batch, DataError):
        raise batch
    return batch


class _Places:
    """A sampler for torch's loader, which iterates over it once in each pass."""

    def __init__(self) -> None:
        self.places: Iterable[Place] = ()

    def __iter__(self) -> Iterator[Place]:
        for epoch, position, indices, rank in self.places:
            yield epoch, position, to_tensor(indices).tolist(), rank


def _identity(batch: Any) -> Any:
    return batch


class HostLoader:
    """The batches of every epoch of *dataset*, combined by *batcher*."""

    def __init__(
        self,
        dataset: Dataset,
        batcher: Batcher,
        order: Order,
        workers: int,
        augmenter: Augmenter | None = None,
    ) -> None:
        self.dataset = dataset
        self.batcher = batcher
        self.order = order
        self.workers = workers
        self.augmenter = augmenter
        self._workers = min(workers, len(order))
        self._fetcher = Fetcher(dataset, batcher, order.seed or 0, augmenter)
        self._pool: WorkerPool | None = None

    @property
    def runs_user_code(self) -> bool:
        """True if code of a user runs in this process, which may draw from the global generators."""
        return not self._workers and self._fetcher.runs_user_code

    def replace(self, *, dataset: Dataset | None = None, batcher: Batcher | None = None) -> "HostLoader":
        """Return the same with another dataset or batcher, and with its own workers."""
        parts = dataset or self.dataset, batcher or self.batcher
        return HostLoader(*parts, self.order, self.workers, self.augmenter)

    def batches(self, epoch: int, first: int) -> Iterator[Any]:
        """Return an iterator over the batches of *epoch*, counted from 1, from batch *first* on.

        Batches of which the rank has no sample are left out.
        """
        if not (self._workers or self.augmenter or self._fetcher.runs_user_code):
            dataset: Any = self.dataset
            indices: Iterable[Tensor] = self.order.batches(epoch, first)
            if self.order.share[1] > 1:
                indices = filter(len, indices)
            is_gathered = type(self.batcher) is NormalizeBatcher and isinstance(dataset.targets, Tensor)
            build = self.batcher.finish if is_gathered else self.batcher.batch  # type: ignore[attr-defined]
            return map(build, map(dataset.__getitems__, indices))  # no call in between
        places = self._places(epoch, first)
        return self._from_workers(places) if self._workers else map(self._fetcher.fetch, places)

    def read(self, epoch: int, indices: Sequence[int]) -> Any:
        """Return the batch of the samples at *indices*, made in this process as the first one of *epoch*."""
        return self._fetcher.fetch((epoch, 0, indices, 0))

    def _from_workers(self, places: Iterator[Place]) -> Iterator[Any]:
        """Return the same batches from worker processes, which are kept for the next pass."""
        pool, self._pool = self._pool, None
        if pool is None:
            pool = WorkerPool(self._fetcher, self._workers)
        return self._keep_pool(pool, pool.batches(places))

    def _keep_pool(self, pool: WorkerPool, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield *batches*, and keep *pool* unless they end with an error."""
        with suppress(GeneratorExit):
            yield from batches
        self._pool = pool  # drops the pool of another pass that has ended meanwhile

    def _places(self, epoch: int, first: int) -> Iterator[Place]:
        rank, _ = self.order.share
        return (
            (epoch, position, indices, rank)
            for position, indices in enumerate(self.order.batches(epoch, first), start=first)
            if indices.shape[0]  # len() takes four times as long
        )
