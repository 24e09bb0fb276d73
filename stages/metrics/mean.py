"""What a metric is, and the value it measures: a mean, kept so that uneven batches weigh what they should."""

from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor


@dataclass(frozen=True)
class Mean:
    """A mean as its two sums; adding two is the mean over both."""

    total: float
    """The sum over the samples."""
    count: int
    """How many samples."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean; NaN of no samples."""
        return self.total / self.count if self.count else float("nan")

    @classmethod
    def of(cls, mean: Tensor, count: int) -> Self:
        """The *mean* of a batch of *count* samples. float64 holds the product of the two exactly."""
        return cls(mean.item() * count, count)


class Metric(Protocol):
    """One number to follow through a run. A user's own needs these and no base class."""

    name: str
    """As logs, curves and the summary show it; spaces become ``_`` in file names."""
    unit: str | None
    # and, where not every output will do: ``measures``, the type of those that it takes

    def measure(self, output: Any) -> Mean:
        """What *output*, a step's item, comes to."""
