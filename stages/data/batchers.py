"""Batchers: several samples to one batch, as the model takes it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stages.data.datasets import Samples


class Batch(NamedTuple):
    """What the shipped models take, of *B* samples; unpacks as ``inputs, targets``."""

    inputs: Tensor
    """(B, …), float32."""
    targets: Tensor
    """(B,) or (B, …)."""


class Batcher(Protocol):
    """Burn's `Batcher`: makes a batch of the samples a data set gave."""

    def batch(self, items: Sequence[Any]) -> Any:
        """One batch of *items*, on the CPU."""


class NormalizeBatcher:
    """Inputs to float32, with the mean taken away and divided by the standard deviation."""

    def __init__(self, mean: float = 0.0, std: float = 1.0) -> None:
        self._scale = 1.0 / std
        self._offset = torch.tensor(-mean / std)

    def batch(self, items: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        """Inputs as (B, …) float32, targets as they are."""
        samples = Samples.of(items)
        inputs = samples.inputs.to(torch.float32, copy=True)
        torch.add(self._offset, inputs, alpha=self._scale, out=inputs)  # one pass
        return Batch(inputs, samples.targets)
