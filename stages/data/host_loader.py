"""The batches of a split on the host, loaded in this process or by worker processes."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from stages.data.augment.augmentation import Augmenter
from stages.data.batchers import Batcher
from stages.data.datasets import Dataset
from stages.data.fetcher import Fetcher, Place
from stages.data.order import Order
from stages.data.worker_pool import WorkerPool


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
        places = self._places(epoch, first)
        return self._from_workers(places) if self._workers else map(self._fetcher.__getitem__, places)

    def read(self, epoch: int, indices: Sequence[int]) -> Any:
        """Return the batch of the samples at *indices*, made in this process as the first one of *epoch*."""
        return self._fetcher[epoch, 0, indices, 0]

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
            if len(indices)
        )
