"""Areas under curves, which need all scores of an epoch: every score is kept until the value is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.metrics.chunks import Chunks
from stages.metrics.confusion import Classified, Reduction, reduction_named, rows_of

Area = Callable[["Curves"], Tensor]
"""From the curves of some classes to their areas, (C,), float64; NaN for a class without one."""

MAX_BATCH_CLASSES = 100
"""Classes up to which each batch has a value of its own.

The value of a batch sorts its scores. For a batch of 64 that takes a third of a training step of a small
network at 100 classes, and as long as the step at 1,000. With more classes than samples in a batch most
classes have no area there, so the value would say little anyway.
"""
MAX_SORTED_SCORES = 1 << 18
"""Scores that are sorted together, to bound the memory that a sort takes to about 25 MB."""


@dataclass(frozen=True)
class Batch:
    """The rows of one batch."""

    logits: Tensor
    """(N, C)."""
    right: Tensor
    """The right classes, (N, C), booleans."""
    real: Tensor | None
    """The rows to rank, (N,), booleans; None for all."""
    independent: bool
    """Whether each logit has a probability of its own."""

    def scores(self) -> Tensor:
        """Return the numbers to rank, (N, C); of float64, so that the softmax makes no ties."""
        wide = self._kept(self.logits).double()
        return wide if self.independent else wide.softmax(dim=1)

    def labels(self) -> Tensor:
        """Return the right classes of the rows to rank, (N, C), booleans."""
        return self._kept(self.right)

    def _kept(self, rows: Tensor) -> Tensor:
        return rows.cpu() if self.real is None else rows.cpu()[self.real.cpu()]


@dataclass(frozen=True)
class Scores:
    """The scores of an epoch so far, on their device; sorted each time the value is read."""

    batches: Chunks[Batch]
    weight: int | Tensor
    """The number of samples, or positions; a scalar on an accelerator."""
    area: Area
    reduction: Reduction
    has_batch_value: bool
    """Whether the value of a single batch is logged and shown. It depends on the model's output alone."""

    def __add__(self, other: Self, /) -> Self:
        return replace(self, batches=self.batches + other.batches, weight=self.weight + other.weight)

    @property
    def count(self) -> int:
        """The number of samples, or positions."""
        return int(self.weight)

    @property
    def value(self) -> float:
        """In percent; NaN if no class has an area or a score is NaN."""
        if not self.count:
            return float("nan")
        scores = torch.cat([batch.scores() for batch in self.batches])
        if scores.isnan().any():
            return float("nan")
        right = torch.cat([batch.labels() for batch in self.batches])
        if self.reduction is Reduction.MICRO:
            scores, right = scores.reshape(-1, 1), right.reshape(-1, 1)
        areas = torch.cat([self.area(curves) for curves in _curves(scores, right)])
        return 100.0 * areas.nanmean().item()


class AreaMetric:
    """An area under a curve, of each class against the rest, in percent.

    The rank is that of the softmax over the classes, or of the logit itself for several labels and for the
    single logit of a binary model, whose class 1 is measured.
    """

    title: ClassVar[str]
    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, MultiLabelClassificationOutput)

    def __init__(self, *, reduction: str = "macro") -> None:
        self.reduction = reduction_named(reduction, self.title)
        self.name = f"{self.title} [{self.reduction.capitalize()}]"

    @classmethod
    def binary(cls) -> Self:
        """Of a model with one logit."""
        return cls()

    @classmethod
    def multiclass(cls, reduction: str = "macro") -> Self:
        """Of a model that gives one class."""
        return cls(reduction=reduction)

    @classmethod
    def multilabel(cls, reduction: str = "macro") -> Self:
        """Of a model that gives any number of labels."""
        return cls(reduction=reduction)

    def measure(self, output: Classified) -> Scores:
        """Return the scores of one batch; copied, since a captured graph writes over its outputs.

        Each batch has a value of its own if there are at most `MAX_BATCH_CLASSES` classes and one row per
        sample. Raises `BuilderError` if the shapes do not fit.
        """
        rows = rows_of(output, self.name)
        right = rows.right.clone() if rows.right is output.targets else rows.right
        batch = Batch(rows.logits.clone(), right, rows.real, rows.independent)
        has_batch_value = output.output.ndim <= 2 and rows.logits.shape[1] <= MAX_BATCH_CLASSES
        return Scores(Chunks(((batch,),)), rows.weight, self.area, self.reduction, has_batch_value)

    @staticmethod
    def area(curves: "Curves") -> Tensor:
        """Return the area of each class, (C,), float64; NaN for a class without one."""
        raise NotImplementedError


class AurocMetric(AreaMetric):
    """The area under the receiver operating characteristic.

    A class that all samples have, or none, has no such area and is left out (Burn ≤0.21 counts it as 0).
    """

    title = "AUROC"

    @staticmethod
    def area(curves: "Curves") -> Tensor:
        """Return the probability that a right score exceeds a wrong one; a tie counts as a half."""
        hits, false_alarms = curves.steps(curves.hits), curves.steps(curves.false_alarms)
        twice = false_alarms * (2 * curves.hits - hits)  # integers, whose sums are exact in any order
        total = torch.zeros_like(curves.right).index_add_(0, curves.classes, twice)
        return total.double() / 2 / (curves.right.double() * curves.wrong.double())


class AucPrMetric(AreaMetric):
    """The area under the curve of precision over recall, as average precision (no interpolation).

    A class that no sample has is left out; with none left it is NaN (Burn says 50).
    """

    title = "AUC-PR"

    @staticmethod
    def area(curves: "Curves") -> Tensor:
        """Return the precision at each threshold, weighted by the recall that it adds."""
        precision = curves.hits.double() / (curves.hits + curves.false_alarms).double()
        terms = precision * curves.steps(curves.hits)
        sums = [part.sum() for part in torch.split(terms, curves.classes.bincount().tolist())]
        return torch.stack(sums) / curves.right


@dataclass(frozen=True)
class Curves:
    """Hits and false alarms of some classes at each of their thresholds, one class after another.

    The thresholds of a class are its different scores, from the highest down.
    """

    classes: Tensor
    """The class of each threshold, (T,), ascending from 0."""
    hits: Tensor
    """The right samples at or above each threshold, (T,)."""
    false_alarms: Tensor
    """The wrong samples at or above each threshold, (T,)."""
    right: Tensor
    """The right samples of each class, (C,)."""
    wrong: Tensor
    """The wrong samples of each class, (C,)."""

    def steps(self, counts: Tensor) -> Tensor:
        """Return how much each of *counts*, (T,), exceeds that of the threshold before, or 0."""
        steps = counts.clone()
        steps[1:] -= torch.where(self.classes.diff() == 0, counts[:-1], 0)
        return steps


def _curves(scores: Tensor, right: Tensor) -> Iterator[Curves]:
    """Yield the curves of *scores* and *right*, both (N, C), for some classes at a time."""
    classes = max(1, MAX_SORTED_SCORES // len(scores))
    for columns in zip(torch.split(scores.T, classes), torch.split(right.T, classes), strict=True):
        yield _sorted_curves(*columns)


def _sorted_curves(scores: Tensor, right: Tensor) -> Curves:
    """Return the curves of *scores* and *right*, both (C, N); one sort for all classes."""
    count = scores.shape[1]
    ordered, order = scores.contiguous().sort(dim=1, descending=True)
    is_last = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[:, 1:], ordered[:, :-1], out=is_last[:, :-1])  # equal scores are one threshold
    hits = right.gather(1, order).cumsum(1)
    classes, places = is_last.nonzero(as_tuple=True)
    found = hits[is_last]
    return Curves(classes, found, places + 1 - found, hits[:, -1], count - hits[:, -1])
