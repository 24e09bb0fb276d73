"""Datasets: samples by index, in memory, in files of images, or selected from other datasets as in Burn."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from stages.data.image_files import ImageFiles
from stages.data.trees import Ragged, Tree, count_rows, list_leaves, map_leaves, take
from stages.devices.rng import derive_seed


class Dataset(Protocol):
    """A map-style dataset of PyTorch. Burn's `Dataset`."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int) -> Any:
        """Return one sample."""


def stack(samples: Sequence[Tree]) -> Tree:
    """Return the leaves of *samples*, which have one structure, as tensors (N, …)."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: stack([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(map(stack, zip(*samples, strict=True)))
    return None if first is None else torch.stack([*map(to_tensor, samples)])


def to_tensor(value: Any) -> Tensor:
    """Return *value* as a tensor; one that is created is on the CPU, whatever the default device is."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")


@dataclass(frozen=True)
class Samples(Sequence[Any]):
    """Several samples: a sequence of pairs (input, target), or of inputs if there are no targets."""

    inputs: Tree
    """A tensor (N, …), or a tuple or dict of such."""
    targets: Tree = None
    """The same, with (N,) or (N, …); also `Ragged`; None without targets."""

    def __len__(self) -> int:
        return count_rows(self.inputs)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or the `Samples` of a slice."""
        inputs, targets = take(self.inputs, index), take(self.targets, index)
        if isinstance(index, slice):
            return Samples(inputs, targets)
        return inputs if targets is None else (inputs, targets)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.inputs, Tensor) and isinstance(self.targets, Tensor):
            return zip(self.inputs, self.targets, strict=True)
        return (self[index] for index in range(len(self)))

    @classmethod
    def of(cls, items: Sequence[Any]) -> "Samples":
        """Return *items*, pairs or inputs without targets, as tensors; an instance is returned unchanged."""
        if isinstance(items, Samples):
            return items
        if isinstance(items[0], Mapping | Tensor):
            return cls(stack(items))
        inputs, targets = zip(*items, strict=True)
        return cls(stack(inputs), stack(targets))


class TensorDataset:
    """Samples in memory. A batch is gathered with one call per tensor, faster than by worker processes.

    *inputs* and *targets* are tensors (N, …), or tuples or dicts of such; *targets* may also be `Ragged`, or
    None. *allocate* returns the memory for a number of bytes to gather in, a tensor of uint8. Default: new
    memory. *kinds* are those of the leaves, by their names, for augmentation. Default: inputs are images.
    """

    def __init__(
        self,
        inputs: Tree,
        targets: Tree = None,
        allocate: Callable[[int], Tensor] | None = None,
        *,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        lengths = [len(leaf) for leaf in (*list_leaves(inputs), *list_leaves(targets))]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"inputs and targets must have the same length; found {' and '.join(map(str, lengths))}"
            )
        self.inputs = inputs
        self.targets = targets
        self.kinds = kinds
        self._allocate = allocate
        self.is_plain = isinstance(inputs, Tensor) and isinstance(targets, Tensor)
        """True if there is one tensor of inputs and one of targets."""

    def __len__(self) -> int:
        return count_rows(self.inputs)

    @property
    def leaves(self) -> list[Any]:
        """All leaves of inputs and targets."""
        return [*list_leaves(self.inputs), *list_leaves(self.targets)]

    def __getitem__(self, index: int) -> Any:
        if self.is_plain:
            return self.inputs[index], self.targets[index]
        return Samples(self.inputs, self.targets)[index]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Samples:
        """Return the samples at *indices*, in that order."""
        chosen = to_tensor(indices)
        if self._allocate is None and self.is_plain:
            return Samples(self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen))
        gather = partial(_gather, indices=chosen, allocate=self._allocate)
        return Samples(map_leaves(gather, self.inputs), map_leaves(gather, self.targets))


def _gather(tensor: Any, indices: Tensor, allocate: Callable[[int], Tensor] | None) -> Any:
    """Return the rows of *tensor* at *indices* in the memory of *allocate*."""
    if isinstance(tensor, Ragged):
        return tensor[indices.numpy()]
    if allocate is None or not tensor.is_contiguous():
        return tensor.index_select(0, indices)
    shape = (len(indices), *tensor.shape[1:])
    memory = allocate(math.prod(shape) * tensor.element_size())
    gathered, unit = memory.view(tensor.dtype).view(shape), _unit_of(tensor)
    torch.index_select(_rows(tensor, unit), 0, indices, out=_rows(gathered, unit))
    return gathered


def _unit_of(tensor: Tensor) -> torch.dtype:
    """Return a dtype of 8 bytes if the rows of *tensor* have that unit, else bytes.

    torch divides a row of more than 32,768 elements among its threads, and otherwise the rows, which costs
    less, above all in a second thread.
    """
    size = tensor.element_size()
    row, start = math.prod(tensor.shape[1:]) * size, tensor.storage_offset() * size
    return torch.uint8 if row % 8 or start % 8 else torch.int64


def _rows(tensor: Tensor, unit: torch.dtype) -> Tensor:
    return tensor.view(len(tensor), math.prod(tensor.shape[1:])).view(unit)


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
        super().__init__(dataset, torch.randperm(len(dataset), generator=generator, device="cpu").tolist())


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
            drawn = torch.randint(count, (size,), generator=generator, device="cpu")
        else:
            drawn = torch.randperm(count, generator=generator, device="cpu")[:size]
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


class ImageFileDataset:
    """Samples with images or masks in files. A batch is decoded into tensors, best by worker processes.

    *files* and *targets* are `ImageFiles`, tensors (N, …), or tuples or dicts of such. *kinds* are those of
    the leaves, by their names, for augmentation.
    """

    def __init__(self, files: Tree, targets: Tree, *, kinds: Mapping[str, str] | None = None) -> None:
        self.files = files
        self.targets = targets
        self.kinds = kinds

    def __len__(self) -> int:
        return count_rows(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Samples:
        """Return the samples at *indices*, in that order. Raises `DataError` as `ImageFiles` does."""
        read = partial(_read_leaf, indices=to_tensor(indices))
        return Samples(map_leaves(read, self.files), map_leaves(read, self.targets))


def _read_leaf(leaf: Any, indices: Tensor) -> Any:
    """Return the rows of *leaf* at *indices*, decoded if they are in files."""
    if isinstance(leaf, ImageFiles):
        return torch.from_numpy(leaf[indices.numpy()])
    return _gather(leaf, indices, None)
