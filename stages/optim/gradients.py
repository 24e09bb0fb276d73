"""Gradients of several batches as one."""

from collections.abc import Sequence

from torch import Tensor

Gradients = Sequence[Tensor | None]


class Window:
    """Adds up the gradients of *length* batches, each weighed by its samples.

    The sum over the samples equals, to float tolerance, the gradient of one batch of the joined size.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.batches = 0
        self._samples = 0
        self._sums: list[Tensor | None] = []

    @property
    def full(self) -> bool:
        """Whether it holds *length* batches."""
        return self.batches >= self.length

    def add(self, gradients: Gradients, samples: int) -> None:
        """Take in the mean gradients of one batch of *samples*."""
        scaled = list(gradients) if self.length == 1 else [_times(g, samples) for g in gradients]
        if self._sums:
            self._sums = [_plus(a, b) for a, b in zip(self._sums, scaled, strict=True)]
        else:
            self._sums = scaled
        self._samples += samples
        self.batches += 1

    def take(self) -> Gradients:
        """The mean over all samples in the window, which is empty afterwards."""
        sums, samples = self._sums, self._samples
        self.batches, self._samples, self._sums = 0, 0, []
        if self.length == 1:
            return sums
        return [None if total is None else total.div_(samples) for total in sums]


def _times(gradient: Tensor | None, samples: int) -> Tensor | None:
    return None if gradient is None else gradient * samples


def _plus(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total.add_(gradient)
