"""Datasets: samples by index, in memory, in files of images, or selected from other datasets as in Burn."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from stages.contracts.errors import DataError
from stages.data.image_files import ImageDecoder, ImageFiles, put
from stages.devices.rng import derive_seed


class Dataset(Protocol):
    """A map-style dataset of PyTorch. Burn's `Dataset`."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int) -> Any:
        """Return one sample."""


@dataclass(frozen=True)
class Samples(Sequence[tuple[Tensor, Tensor]]):
    """Several samples: a sequence of (input, target) pairs, stored as two tensors."""

    inputs: Tensor
    """(N, …)"""
    targets: Tensor
    """(N,) or (N, …)"""

    def __len__(self) -> int:
        return len(self.inputs)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...
    @overload
    def __getitem__(self, index: slice) -> "Samples": ...
    def __getitem__(self, index: int | slice) -> "tuple[Tensor, Tensor] | Samples":
        if isinstance(index, slice):
            return Samples(self.inputs[index], self.targets[index])
        return self.inputs[index], self.targets[index]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.inputs, self.targets, strict=True)

    @classmethod
    def of(cls, items: Sequence[tuple[Tensor, Tensor]]) -> "Samples":
        """Return *items* as two tensors; an instance of this class is returned unchanged."""
        if isinstance(items, Samples):
            return items
        inputs, targets = zip(*items, strict=True)
        return cls(torch.stack(inputs), torch.stack([torch.as_tensor(target) for target in targets]))


class TensorDataset:
    """Samples in memory. A batch is gathered with one call per tensor, faster than by worker processes.

    *allocate* returns the memory for a number of bytes to gather in, a tensor of uint8. Default: new memory.
    """

    def __init__(
        self, inputs: Tensor, targets: Tensor, allocate: Callable[[int], Tensor] | None = None
    ) -> None:
        if len(inputs) != len(targets):
            raise ValueError(
                f"inputs and targets must have the same length; found {len(inputs)} and {len(targets)}"
            )
        self.inputs = inputs
        self.targets = targets
        self._allocate = allocate

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Samples:
        """Return the samples at *indices*, in that order."""
        chosen = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
        if self._allocate is None:
            return Samples(self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen))
        return Samples(*(_gather(tensor, chosen, self._allocate) for tensor in (self.inputs, self.targets)))


def _gather(tensor: Tensor, indices: Tensor, allocate: Callable[[int], Tensor]) -> Tensor:
    """Return the rows of *tensor* at *indices* in the memory of *allocate*."""
    if not tensor.is_contiguous():
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


class ImageFileDataset:
    """Samples whose images are in files. A batch is decoded into one tensor, best by worker processes."""

    def __init__(self, files: ImageFiles, targets: Tensor) -> None:
        self.files = files
        self.targets = targets
        self._decoder = ImageDecoder(files.form)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Samples:
        """Return the samples at *indices*, in that order.

        Raises `DataError` with the path of a file that is missing, corrupt, or of another size in bytes than
        load-data read.
        """
        chosen = torch.as_tensor(indices)
        images = torch.empty((len(chosen), *self.files.form.shape), dtype=torch.uint8)
        for image, index in zip(images.numpy(), chosen.tolist(), strict=True):
            put(image, self._decoder.decode(*self._read(index)))
        return Samples(images, self.targets.index_select(0, chosen))

    def _read(self, index: int) -> tuple[str, bytes]:
        """Return the name and the content of a file."""
        name = self.files.names[index]
        content = self._decoder.read(name)
        if self.files.sizes is not None and len(content) != self.files.sizes[index]:
            raise DataError(
                f"{self.files.form.root}/{name} has {len(content)} bytes, but load-data read "
                f"{self.files.sizes[index]}. Run load-data again"
            )
        return name, content
