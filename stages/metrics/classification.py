"""Counts of correct predictions: accuracy, top-k accuracy, the Hamming score, and the confusion matrix.

The confusion matrix holds only the pairs of classes that occur.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Self, TypeVar

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput, SequenceOutput
from stages.contracts.text import number
from stages.metrics.class_targets import (
    ClassCollector,
    SingleLabelOutput,
    check_label_shapes,
    compute_accuracy,
    compute_hit_rate,
    predict_classes,
    split_output,
    top_k_mask,
    widen,
)
from stages.metrics.state import Chunks, Mean

Class = TypeVar("Class", bound=Hashable)
"""A class, by its number or by its name."""
STRIDE = 1 << 32
"""A pair is stored as one integer: the actual class times this, plus the predicted class."""
NO_PAIR = -1
"""The pair of a sample that is not counted."""
MAX_UNMERGED_PAIRS = 1 << 18
"""The number of pairs that are stored as they arrive before equal ones are merged."""
MAX_SHOWN_CLASSES = 200
"""The largest number of classes for which all cells are shown; more cells would not fit in a picture."""
MAX_SHOWN_PAIRS = 100
"""The number of pairs that are shown of a larger matrix."""


class AccuracyMetric:
    """The fraction of targets whose class has the highest logit, in percent.

    One logit is a binary model: above 0 it predicts class 1. A target of -100 is not counted; of equal
    logits the first counts as the highest; a row that contains NaN is never correct. See
    `stages.metrics.class_targets` for the shapes.

    Args:
        pad_token: another target that is not counted; None for none.
    """

    name = "Accuracy"
    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token

    def measure(self, output: SingleLabelOutput) -> Mean:
        """Return the accuracy of one batch. Raises `BuilderError` if the shapes do not match."""
        return compute_accuracy(output, self.name, self.pad_token)

    def build_collector(self) -> ClassCollector | None:
        """Return a collector that has the values of `measure`; None if a subclass has other ones."""
        is_overridden = type(self).measure is not AccuracyMetric.measure
        return None if is_overridden else ClassCollector(self.measure, self.pad_token)


class TopKAccuracyMetric:
    """The fraction of targets whose class is among the *k* highest logits, in percent.

    Shapes, ties, NaN and ignored targets are handled as in `AccuracyMetric`, which equals a *k* of 1.

    Args:
        k: the number of classes that are predicted, 1 or more.
        pad_token: another target that is not counted; None for none.

    Raises `BuilderError` if *k* is below 1.
    """

    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, k: int, *, pad_token: int | None = None) -> None:
        if k < 1:
            raise BuilderError(f"top-k accuracy takes a k of 1 or more, not {k}")
        self.name = f"Top-K Accuracy @ TopK({k})"
        self.k = k
        self.pad_token = pad_token

    def measure(self, output: SingleLabelOutput) -> Mean:
        """Return the top-k accuracy of one batch.

        Raises `BuilderError` if the shapes do not match or there are fewer than *k* classes.
        """
        if self.k == 1:
            return compute_accuracy(output, self.name, self.pad_token)
        logits, targets, dim = split_output(output, self.name)
        classes = 1 if dim is None else logits.shape[dim]
        if dim is None or self.k > classes:
            raise BuilderError(
                f"metric {self.name!r} has a k of {self.k}, but the model has {classes} classes: "
                f"set k to {classes} or less"
            )
        index = targets.long().clamp(0, classes - 1).unsqueeze(dim)
        is_class = (targets >= 0) & (targets < classes)
        hits = top_k_mask(logits, self.k, dim).gather(dim, index).squeeze(dim) & is_class
        return compute_hit_rate(hits, targets, self.pad_token)


class HammingScore:
    """The fraction of (sample, label) pairs that are predicted correctly, in percent.

    Args:
        threshold: a label is predicted if its probability exceeds this.
        sigmoid: whether the model's output is logits. Set it to False for a model that returns
            probabilities. Burn's default is False.
    """

    unit = "%"
    better = Direction.HIGHEST
    measures = MultiLabelClassificationOutput

    def __init__(self, *, threshold: float = 0.5, sigmoid: bool = True) -> None:
        self.name = f"Hamming Score @ Threshold({number(threshold)})"
        self.threshold = threshold
        self.sigmoid = sigmoid

    def measure(self, output: MultiLabelClassificationOutput) -> Mean:
        """Return the score of one batch. Raises `BuilderError` if the shapes of logits and targets differ."""
        check_label_shapes(output, self.name)
        scores = widen(output.output.detach())
        scores = scores.sigmoid() if self.sigmoid else scores
        is_correct = (scores > self.threshold) == output.targets.bool()
        return Mean.from_sum(is_correct.sum(), is_correct.numel(), 100.0)


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
        """Return the same matrix with distinct pairs in ascending order, in one block."""
        pairs, counts = map(torch.cat, zip(*self.blocks, strict=True))
        pairs, positions = torch.unique(pairs, return_inverse=True)
        counts = torch.zeros_like(pairs).index_add_(0, positions, counts)
        is_counted = pairs != NO_PAIR
        pairs, counts = pairs[is_counted], counts[is_counted]
        return type(self)(self.classes, Chunks((((pairs, counts),),)), len(pairs), len(pairs))

    def cells(self) -> list[tuple[int, int, int]]:
        """Return the actual class, predicted class and count of each pair that occurs, in ascending order."""
        [(pairs, counts)] = self.merge().blocks
        columns = (pairs // STRIDE, pairs % STRIDE, counts)
        return list(zip(*(column.tolist() for column in columns), strict=True))


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
