"""Datasets: samples by index."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import torch
from torch import Tensor


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
