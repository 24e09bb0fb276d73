"""From the indices of a batch to the batch, the same in whichever process."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stages.data.batchers import Batcher, NormalizeBatcher
from stages.data.datasets import Dataset, TensorDataset
from stages.data.randomness import random_state_kept, seed_random_state


class Fetcher:
    """Makes the batches of one epoch, here or, pickled, in a worker.

    What a sample draws at random depends on (seed, epoch, index); what ``__getitems__`` and the batcher
    draw depends on (seed, epoch, position of the batch).
    """

    def __init__(self, dataset: Dataset, batcher: Batcher, seed: int, epoch: int) -> None:
        self._dataset = dataset
        self._batcher = batcher
        self._path = seed, epoch

    def __getitem__(self, place: tuple[int, Sequence[int] | Tensor]) -> Any:
        """Return the batch at a position in the epoch, made of the samples at these indices.

        Raises `RuntimeError` if the dataset or the batcher raises StopIteration, which would end the epoch,
        or SystemExit, which would end a worker without a message.
        """
        try:
            return self._batch(*place)
        except (StopIteration, SystemExit) as error:
            raise RuntimeError(
                f"batch {place[0]}: the dataset or the batcher raised {type(error).__name__}"
            ) from error

    def _batch(self, position: int, indices: Sequence[int] | Tensor) -> Any:
        if type(self._dataset) is not TensorDataset:
            with random_state_kept():
                items = self._drawn(position, torch.as_tensor(indices).tolist())
        else:
            items = self._dataset.__getitems__(indices)
        if type(self._batcher) is NormalizeBatcher:
            return self._batcher.batch(items)
        with random_state_kept():
            seed_random_state(*self._path, "batcher", position)
            return self._batcher.batch(items)

    def _drawn(self, position: int, indices: list[int]) -> Any:
        fetch = getattr(self._dataset, "__getitems__", None)
        if fetch is None:
            return [self._sample(index) for index in indices]
        seed_random_state(*self._path, "batch", position)
        return fetch(indices)

    def _sample(self, index: int) -> Any:
        seed_random_state(*self._path, index)
        return self._dataset[index]
