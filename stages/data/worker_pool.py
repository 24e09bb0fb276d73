"""Worker processes that prepare the batches of a loader in every epoch of a run."""

import ctypes
import multiprocessing
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing.util import Finalize
from signal import SIGINT
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from stages.contracts.errors import DataError
from stages.data.fetcher import Fetcher, Place
from stages.system.worker_signals import RESET, block_signals, prepare_worker


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
            _WorkerFetcher(fetcher),  # type: ignore[arg-type]  # structurally a dataset of batches
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


class _WorkerFetcher:
    """A fetcher that returns a `DataError` instead of raising it."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def __getitem__(self, place: Place) -> Any:
        try:
            return self._fetcher[place]
        except DataError as error:
            return error


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
            yield epoch, position, torch.as_tensor(indices).tolist(), rank


def _identity(batch: Any) -> Any:
    return batch
