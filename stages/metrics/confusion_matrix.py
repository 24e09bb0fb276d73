"""How often each class was taken for each other one."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from stages.contracts.outputs import ClassificationOutput
from stages.metrics.labels import likeliest


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts that add, so that uneven batches weigh what they should."""

    counts: Tensor
    """(actual class, predicted class), integers."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.counts + other.counts)

    @classmethod
    def of(cls, output: ClassificationOutput) -> Self:
        """Return that of one batch; a single logit above 0 predicts class 1.

        A target that is not a class, as the ignored -100, is not counted, nor is a row with a NaN. Raises
        `BuilderError` if the shapes do not fit.
        """
        predicted, actual = likeliest(output, "confusion matrix")
        size = 2 if output.output.ndim == 1 else max(output.output.shape[1], 2)
        predicted, actual = predicted.flatten(), actual.flatten().long()
        places = (actual * size + predicted)[(actual >= 0) & (actual < size) & (predicted >= 0)]
        return cls(torch.bincount(places, minlength=size * size).reshape(size, size))

    def cells(self) -> list[tuple[int, int, int]]:
        """Return actual class, predicted class and count of each pair that occurs."""
        counts = self.counts.cpu()
        return [(*place, int(counts[*place])) for place in counts.nonzero().tolist()]
