"""Datasets built from other datasets, with the names of Burn; a sample is read when it is requested."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from stages.contracts.seeds import derive_seed
from stages.data.datasets import Dataset


class SelectionDataset:
    """A dataset of the samples of *dataset* at *indices*, in that order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]


class PartialDataset(SelectionDataset):
    """A dataset of the samples of *dataset* from *start* to *end*, excluding *end*."""

    def __init__(self, dataset: Dataset, start: int, end: int) -> None:
        super().__init__(dataset, range(len(dataset))[start:end])


class ShuffledDataset(SelectionDataset):
    """A dataset in one random order, drawn by *seed*. (The loader shuffles each epoch.)"""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        generator = torch.Generator().manual_seed(derive_seed(seed, "shuffled"))
        super().__init__(dataset, torch.randperm(len(dataset), generator=generator).tolist())


class SamplerDataset(SelectionDataset):
    """A dataset of *size* samples of *dataset*, drawn by *seed* with or without *replacement*."""

    def __init__(self, dataset: Dataset, size: int, seed: int, *, replacement: bool = True) -> None:
        count = len(dataset)
        if not replacement and size > count:
            raise ValueError(
                f"size must be at most {count}, the length of the dataset, without replacement; found {size}"
            )
        generator = torch.Generator().manual_seed(derive_seed(seed, "sampler"))
        if replacement:
            drawn = torch.randint(count, (size,), generator=generator)
        else:
            drawn = torch.randperm(count, generator=generator)[:size]
        super().__init__(dataset, drawn.tolist())


class MapperDataset:
    """A dataset that applies *mapper* to each sample of *dataset* when it is requested."""

    def __init__(self, dataset: Dataset, mapper: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.mapper = mapper

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.mapper(self.dataset[index])


class ComposedDataset:
    """A concatenation of *datasets*."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = datasets
        self._ends = list(accumulate(len(dataset) for dataset in datasets))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        index = range(len(self))[index]
        place = bisect_right(self._ends, index)
        return self.datasets[place][index - (self._ends[place - 1] if place else 0)]


class WindowsDataset:
    """A dataset of all windows of *size* consecutive samples of *dataset*, each a list."""

    def __init__(self, dataset: Dataset, size: int) -> None:
        if size < 1:
            raise ValueError(f"the size of a window must be at least 1; found {size}")
        self.dataset = dataset
        self.size = size

    def __len__(self) -> int:
        return max(len(self.dataset) - self.size + 1, 0)

    def __getitem__(self, index: int) -> list[Any]:
        start = range(len(self))[index]
        return [self.dataset[start + offset] for offset in range(self.size)]
