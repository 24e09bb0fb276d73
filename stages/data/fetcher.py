"""Batches, made of sample indices with random numbers that depend only on the seed and the epoch."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from stages.data.augment.augmentation import Augmenter
from stages.data.batchers import Batcher, GatherBatcher, NormalizeBatcher
from stages.data.datasets import Dataset, TensorDataset
from stages.data.image_dataset import ImageFileDataset
from stages.data.padding import PadBatcher
from stages.data.random_state import seed_random_state
from stages.devices.rng import preserve_random_state

Place = tuple[int, int, Sequence[int] | Tensor, int]
"""The epoch of a batch, its position in it, counted from 0, the indices of its samples, and the rank."""


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
        path = position, *(("rank", rank) if rank else ())
        if self._draws_samples:
            with preserve_random_state():
                items = self._draw(epoch, torch.as_tensor(indices).tolist(), path)
        else:
            items = self._dataset.__getitems__(indices)  # type: ignore[attr-defined]  # one of these two
        if self._augmenter is not None:
            with preserve_random_state() if self._augmenter.runs_user_code else nullcontext():
                items = self._augmenter.augment(items, epoch, indices)
        if not self._draws_batches:
            return self._batcher.batch(items)
        with preserve_random_state():
            seed_random_state(self.seed, epoch, "batcher", *path)
            return self._batcher.batch(items)

    def _draw(self, epoch: int, indices: list[int], path: Sequence[int | str]) -> Any:
        fetch = getattr(self._dataset, "__getitems__", None)
        if fetch is None:
            return [self._sample(epoch, index) for index in indices]
        seed_random_state(self.seed, epoch, "batch", *path)
        return fetch(indices)

    def _sample(self, epoch: int, index: int) -> Any:
        seed_random_state(self.seed, epoch, index)
        return self._dataset[index]
