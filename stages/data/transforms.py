"""Data sets made of other data sets, by the names of Burn; each reads only what is asked for."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from stages.contracts.seeds import derive_seed
from stages.data.datasets import Dataset


class SelectionDataset:
    """The samples of *dataset* at *indices*, in that order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]


class PartialDataset(SelectionDataset):
    """The samples of *dataset* from *start* up to, and without, *end*."""

    def __init__(self, dataset: Dataset, start: int, end: int) -> None:
        super().__init__(dataset, range(len(dataset))[start:end])


class ShuffledDataset(SelectionDataset):
    """The samples of *dataset* in one order, drawn by *seed*. (A new one every epoch is the loader's.)"""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        generator = torch.Generator().manual_seed(derive_seed(seed, "shuffled"))
        super().__init__(dataset, torch.randperm(len(dataset), generator=generator).tolist())


class SamplerDataset(SelectionDataset):
    """*size* samples of *dataset*, drawn by *seed*; with *replacement* one may come again."""

    def __init__(self, dataset: Dataset, size: int, seed: int, *, replacement: bool = True) -> None:
        count = len(dataset)
        if not replacement and size > count:
            raise ValueError(f"{size} samples without replacement of a data set that has {count}")
        generator = torch.Generator().manual_seed(derive_seed(seed, "sampler"))
        if replacement:
            drawn = torch.randint(count, (size,), generator=generator)
        else:
            drawn = torch.randperm(count, generator=generator)[:size]
        super().__init__(dataset, drawn.tolist())


class MapperDataset:
    """*mapper* of each sample of *dataset*, when it is asked for."""

    def __init__(self, dataset: Dataset, mapper: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.mapper = mapper

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.mapper(self.dataset[index])


class ComposedDataset:
    """The samples of all *datasets*, one after another."""

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
    """Every run of *size* neighbouring samples of *dataset*, as a list."""

    def __init__(self, dataset: Dataset, size: int) -> None:
        if size < 1:
            raise ValueError(f"windows of {size} samples: at least 1")
        self.dataset = dataset
        self.size = size

    def __len__(self) -> int:
        return max(len(self.dataset) - self.size + 1, 0)

    def __getitem__(self, index: int) -> list[Any]:
        start = range(len(self))[index]
        return [self.dataset[start + offset] for offset in range(self.size)]
