"""A confusion matrix that holds only the pairs of classes that occur."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Self, TypeVar

import torch
from torch import Tensor

from stages.contracts.outputs import ClassificationOutput
from stages.metrics.class_targets import predict_classes
from stages.metrics.state import Chunks

STRIDE = 1 << 32
"""A pair is stored as one integer: the actual class times this, plus the predicted class."""
NO_PAIR = -1
"""The pair of a sample that is not counted."""
MAX_UNMERGED_PAIRS = 1 << 18
"""The number of pairs that are stored as they arrive before equal ones are merged."""


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts of the pairs of actual and predicted class that occur. Two matrices can be added.

    The memory is proportional to the number of distinct pairs, at most the number of samples, and not to the
    square of the number of classes.
    """

    classes: int
    blocks: Chunks[tuple[Tensor, Tensor]]
    """Pairs and their counts, both (K,), int64; two blocks may contain equal pairs."""
    size: int
    """The number of pairs in all blocks."""
    merged_size: int = 0
    """The number of pairs after the last merge of equal pairs."""

    def __add__(self, other: Self, /) -> Self:
        both = type(self)(
            max(self.classes, other.classes),
            self.blocks + other.blocks,
            self.size + other.size,
            max(self.merged_size, other.merged_size),
        )
        # Each merge sorts all pairs, so their number doubles between two merges.
        return both.merge() if both.size > 2 * max(both.merged_size, MAX_UNMERGED_PAIRS) else both

    @classmethod
    def from_output(cls, output: ClassificationOutput) -> Self:
        """Return the matrix of one batch, without blocking on the device.

        A single logit above 0 predicts class 1. A target that is not a class, such as the ignored -100, and a
        row that contains NaN are not counted. Raises `BuilderError` if the shapes do not match.
        """
        predicted, actual = predict_classes(output, "confusion matrix")
        classes = 2 if output.output.ndim == 1 else max(output.output.shape[1], 2)
        predicted, actual = predicted.flatten(), actual.flatten().long()
        is_counted = (actual >= 0) & (actual < classes) & (predicted >= 0)
        pairs = torch.where(is_counted, actual * STRIDE + predicted, NO_PAIR)
        counts = torch.ones_like(pairs[:1]).expand_as(pairs)
        return cls(classes, Chunks((((pairs, counts),),)), len(pairs))

    def merge(self) -> Self:
        """Return the same matrix with distinct pairs in ascending order."""
        pairs, counts = self._merge_blocks()
        return type(self)(self.classes, Chunks((((pairs, counts),),)), len(pairs), len(pairs))

    def cells(self) -> list[tuple[int, int, int]]:
        """Return the actual class, predicted class and count of each pair that occurs, in ascending order."""
        pairs, counts = self._merge_blocks()
        columns = (pairs // STRIDE, pairs % STRIDE, counts)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _merge_blocks(self) -> tuple[Tensor, Tensor]:
        """Return the distinct pairs in ascending order, and their counts."""
        pairs, counts = map(torch.cat, zip(*self.blocks, strict=True))
        pairs, positions = torch.unique(pairs, return_inverse=True)
        counts = torch.zeros_like(pairs).index_add_(0, positions, counts)
        return pairs[pairs != NO_PAIR], counts[pairs != NO_PAIR]


Class = TypeVar("Class", bound=Hashable)

MAX_SHOWN_CLASSES = 200
"""The largest number of classes for which all cells are shown; more cells would not fit in a picture."""
MAX_SHOWN_PAIRS = 100
"""The number of pairs that are shown of a larger matrix."""


def select_most_confused(cells: Sequence[tuple[Class, Class, int]]) -> list[tuple[Class, Class, int, int]]:
    """Return the `MAX_SHOWN_PAIRS` pairs of different classes with the highest counts, in descending order.

    *cells* contains the actual class, predicted class and count of each pair that occurs. A returned pair has
    the number of samples of its actual class as a fourth number. Pairs with equal counts stay in the order of
    *cells*.
    """
    samples: Counter[Class] = Counter()
    for actual, _, count in cells:
        samples[actual] += count
    errors = (cell for cell in cells if cell[0] != cell[1])
    shown = nlargest(MAX_SHOWN_PAIRS, errors, key=lambda cell: cell[2])  # stable, as sorted() is
    return [(actual, predicted, count, samples[actual]) for actual, predicted, count in shown]


def select_cells(
    cells: Sequence[tuple[Class, Class, int]], classes: int
) -> Sequence[tuple[Class | int, ...]]:
    """Return the cells to show of a matrix with *classes* classes: all of them, or the most confused pairs.

    See `select_most_confused` for the form of *cells*, and of the pairs.
    """
    return cells if classes <= MAX_SHOWN_CLASSES else select_most_confused(cells)
