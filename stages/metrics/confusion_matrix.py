"""The number of times that each class was predicted as each class."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from stages.contracts.outputs import ClassificationOutput
from stages.metrics.chunks import Chunks
from stages.metrics.labels import likeliest

STRIDE = 1 << 32
"""A pair is stored as one integer: the actual class times this, plus the predicted class."""
NO_PAIR = -1
MAX_UNMERGED = 1 << 18
"""Pairs that are kept as they come before equal ones are merged."""


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts of the pairs of actual and predicted class that occur; matrices add.

    The memory grows with the number of different pairs, at most with that of the samples, and not with the
    square of the number of classes.
    """

    classes: int
    blocks: Chunks[tuple[Tensor, Tensor]]
    """Pairs and the count of each, both (K,), int64; two blocks may have equal pairs."""
    size: int
    """The number of pairs in all blocks."""
    merged_size: int = 0
    """The number of pairs after the last merge of equal ones."""

    def __add__(self, other: Self, /) -> Self:
        both = type(self)(
            max(self.classes, other.classes),
            self.blocks + other.blocks,
            self.size + other.size,
            max(self.merged_size, other.merged_size),
        )
        # Each merge sorts all pairs, so the number of them doubles in between.
        return both.merged() if both.size > 2 * max(both.merged_size, MAX_UNMERGED) else both

    @classmethod
    def of(cls, output: ClassificationOutput) -> Self:
        """Return that of one batch; a single logit above 0 predicts class 1. Does not wait for the device.

        A target that is not a class, as the ignored -100, is not counted, nor is a row with a NaN. Raises
        `BuilderError` if the shapes do not fit.
        """
        predicted, actual = likeliest(output, "confusion matrix")
        classes = 2 if output.output.ndim == 1 else max(output.output.shape[1], 2)
        predicted, actual = predicted.flatten(), actual.flatten().long()
        is_counted = (actual >= 0) & (actual < classes) & (predicted >= 0)
        pairs = torch.where(is_counted, actual * STRIDE + predicted, NO_PAIR)
        counts = torch.ones_like(pairs[:1]).expand_as(pairs)
        return cls(classes, Chunks((((pairs, counts),),)), len(pairs))

    def merged(self) -> Self:
        """Return the same matrix with each pair once, in ascending order."""
        pairs, counts = self._merged()
        return type(self)(self.classes, Chunks((((pairs, counts),),)), len(pairs), len(pairs))

    def cells(self) -> list[tuple[int, int, int]]:
        """Return actual class, predicted class and count of each pair that occurs, in ascending order."""
        pairs, counts = self._merged()
        columns = (pairs // STRIDE, pairs % STRIDE, counts)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _merged(self) -> tuple[Tensor, Tensor]:
        """Return the pairs, each once and in ascending order, with their counts."""
        pairs, counts = map(torch.cat, zip(*self.blocks, strict=True))
        pairs, places = torch.unique(pairs, return_inverse=True)
        counts = torch.zeros_like(pairs).index_add_(0, places, counts)
        return pairs[pairs != NO_PAIR], counts[pairs != NO_PAIR]
