"""A mean, kept so that uneven batches weigh what they should."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean as its two sums; adding two is the mean over both."""

    total: float | Tensor
    """The sum over the samples; a scalar of float64 on an accelerator, until it is asked for."""
    weight: int | Tensor
    """How many samples; a scalar on an accelerator where only the device knows, as with padding."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> float:
        """The mean; NaN of no samples."""
        return float(self.total) / self.count if self.count else float("nan")

    @property
    def count(self) -> int:
        """How many samples."""
        return int(self.weight)

    @classmethod
    def of(cls, mean: Tensor, count: int) -> Self:
        """The *mean* of a batch of *count* samples. float64 holds the product of the two exactly."""
        return cls.sum(mean, count, count) if count else cls(0.0, 0)

    @classmethod
    def sum(cls, total: Tensor, weight: int | Tensor, times: float = 1.0) -> Self:
        """*total* (a scalar) times *times*, over *weight* samples."""
        if total.device.type == "cpu":
            return cls(total.item() * times, int(weight))  # costs less than an addition of tensors
        wide = total.detach() if total.device.type == "mps" else total.detach().to(torch.float64)
        return cls(wide * times, weight)
