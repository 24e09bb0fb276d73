"""Areas under curves: AUROC and AUC-PR. They keep all scores of an epoch until the value is read."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from stages.contracts.burn import Version
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.metrics.class_targets import (
    AnyClassificationOutput,
    ClassTable,
    Reduction,
    build_class_table,
    parse_reduction,
)
from stages.metrics.state import Chunks

Area = Callable[["ThresholdCounts"], Tensor]
"""Computes the area of each class, (C,), float64; NaN for a class without an area."""

MAX_BATCH_CLASSES = 100
"""The largest number of classes for which each batch has a value.

The value of a batch sorts its scores. For a batch of 64 that takes a third of a training step of a small
network at 100 classes, and as long as the step at 1,000. With more classes than samples in a batch most
classes have no area in it, so the value would mean little anyway.
"""
MAX_SORTED_SCORES = 1 << 18
"""The number of scores that are sorted together, which limits the memory of a sort to about 25 MB."""


def _select_counted(table: ClassTable, rows: Tensor) -> Tensor:
    """Return the *rows* of *table*, (N, C), whose targets are not ignored, on the CPU."""
    return rows.cpu() if table.is_counted is None else rows.cpu()[table.is_counted.cpu()]


def _compute_scores(table: ClassTable) -> Tensor:
    """Return the numbers to rank, (N, C), float64."""
    wide = _select_counted(table, table.logits).double()
    return wide if table.has_independent_classes else _compute_log_odds(wide)


def _compute_log_odds(logits: Tensor) -> Tensor:
    """Return ``log(p / (1 - p))`` of the softmax p of *logits*, (N, C).

    It has the order of p, and no ties of its own: float64 rounds p to 1 if a logit is 37 above the others.
    """
    best = logits.argmax(1, keepdim=True)
    shifted = logits - logits.gather(1, best)
    others = shifted.scatter(1, best, -math.inf)
    weights = others.exp()
    log_odds = shifted - (1 + (weights.sum(1, keepdim=True) - weights)).log()
    return log_odds.scatter(1, best, -others.logsumexp(1, keepdim=True))


@dataclass(frozen=True)
class ScoreSet:
    """All scores of an epoch, on their device; sorted each time the value is read."""

    batches: Chunks[ClassTable]
    weight: int | Tensor
    """The number of samples or positions; a scalar tensor on an accelerator."""
    area: Area
    reduction: Reduction
    has_batch_value: bool
    """Whether the value of a single batch is logged and shown. It depends only on the model's output."""
    without_area: float = math.nan
    """The value in percent if no class has an area."""

    def __add__(self, other: Self, /) -> Self:
        return replace(self, batches=self.batches + other.batches, weight=self.weight + other.weight)

    def state_dict(self) -> dict[str, Any]:
        """Return the batches and the weight; area and reduction belong to the metric."""
        return {"batches": [vars(batch).copy() for batch in self.batches], "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> Self:
        """Return the scores of *state*, for the area of this value."""
        batches = tuple(ClassTable(**batch) for batch in state["batches"])
        return replace(self, batches=Chunks((batches,)), weight=state["weight"])

    @property
    def count(self) -> int:
        """The number of samples or positions."""
        return int(self.weight)

    @property
    def value(self) -> float:
        """The area in percent; NaN if no class has an area or a score is NaN."""
        if not self.count:
            return float("nan")
        scores = torch.cat(list(map(_compute_scores, self.batches)))
        if scores.isnan().any():
            return float("nan")
        is_target = torch.cat([_select_counted(table, table.is_target) for table in self.batches])
        if self.reduction is Reduction.MICRO:
            scores, is_target = scores.reshape(-1, 1), is_target.reshape(-1, 1)
        areas = torch.cat([self.area(counts) for counts in _threshold_counts(scores, is_target)])
        return self.without_area if areas.isnan().all() else 100.0 * areas.nanmean().item()


class AreaMetric:
    """An area under a curve, of each class against the rest, in percent.

    The scores that are ranked are the softmax over the classes, unrounded, or the logit itself for several
    labels and for the single logit of a binary model, of which class 1 is measured.

    Args:
        reduction: ``macro`` or ``micro``, see `Reduction`.

    Raises `BuilderError` for another reduction.
    """

    title: ClassVar[str]
    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, MultiLabelClassificationOutput)

    def __init__(self, reduction: str = "macro") -> None:
        self.reduction = parse_reduction(reduction, self.title)
        self.name = f"{self.title} [{self.reduction.capitalize()}]"
        self.burn: Version | None = None
        """The version of Burn that the run follows, which sets it."""

    @classmethod
    def binary(cls) -> Self:
        """Build the metric for a model with one logit."""
        return cls()

    @classmethod
    def multiclass(cls, reduction: str = "macro") -> Self:
        """Build the metric for a model with one class, or any number of labels, per sample."""
        return cls(reduction=reduction)

    multilabel = multiclass

    def measure(self, output: AnyClassificationOutput) -> ScoreSet:
        """Return the scores of one batch, copied, since a captured graph overwrites its outputs.

        A batch has a value if there are at most `MAX_BATCH_CLASSES` classes and one row per
        sample. Raises `BuilderError` if the shapes do not match.
        """
        table = build_class_table(output, self.name)
        is_target = table.is_target.clone() if table.is_target is output.targets else table.is_target
        copied = replace(table, logits=table.logits.clone(), is_target=is_target)
        has_batch_value = output.output.ndim <= 2 and table.logits.shape[1] <= MAX_BATCH_CLASSES
        value = 50.0 if self.burn == "0.22" else math.nan
        return ScoreSet(Chunks(((copied,),)), table.weight, self.area, self.reduction, has_batch_value, value)

    @staticmethod
    def area(counts: "ThresholdCounts") -> Tensor:
        """Return the area of each class, (C,), float64; NaN for a class without an area."""
        raise NotImplementedError


class AurocMetric(AreaMetric):
    """The area under the receiver operating characteristic.

    A class that is the target of all samples or of no sample has no such area and is left out of the mean
    (Burn ≤0.21 counts it as 0); if none is left, the value is NaN, and 50 in a run that follows Burn 0.22.
    """

    title = "AUROC"

    @staticmethod
    def area(counts: "ThresholdCounts") -> Tensor:
        """Return the probability that a positive has a higher score than a negative; a tie counts as half."""
        true_steps = counts.steps(counts.true_positives)
        false_steps = counts.steps(counts.false_positives)
        twice = false_steps * (2 * counts.true_positives - true_steps)  # integers add exactly in any order
        total = torch.zeros_like(counts.positives).index_add_(0, counts.classes, twice)
        return total.double() / 2 / (counts.positives.double() * counts.negatives.double())


class AucPrMetric(AreaMetric):
    """The area under the precision-recall curve, as average precision (no interpolation).

    A class that is the target of no sample is left out of the mean; if none is left, the value is as for
    `AurocMetric`.
    """

    title = "AUC-PR"

    @staticmethod
    def area(counts: "ThresholdCounts") -> Tensor:
        """Return the mean of the precision at each threshold, weighted by the recall that it adds."""
        predicted = (counts.true_positives + counts.false_positives).double()
        terms = counts.true_positives.double() / predicted * counts.steps(counts.true_positives)
        sums = [part.sum() for part in torch.split(terms, counts.classes.bincount().tolist())]
        return torch.stack(sums) / counts.positives


@dataclass(frozen=True)
class ThresholdCounts:
    """True and false positives of some classes at each of their thresholds, one class after another.

    The thresholds of a class are its distinct scores in descending order.
    """

    classes: Tensor
    """The class of each threshold, (T,), ascending from 0."""
    true_positives: Tensor
    """The positive samples at or above each threshold, (T,)."""
    false_positives: Tensor
    """The negative samples at or above each threshold, (T,)."""
    positives: Tensor
    """The positive samples of each class, (C,)."""
    negatives: Tensor
    """The negative samples of each class, (C,)."""

    def steps(self, counts: Tensor) -> Tensor:
        """Return the increase of *counts*, (T,), over the previous threshold of the same class."""
        steps = counts.clone()
        steps[1:] -= torch.where(self.classes.diff() == 0, counts[:-1], 0)
        return steps


def _threshold_counts(scores: Tensor, is_target: Tensor) -> Iterator[ThresholdCounts]:
    """Return an iterator over the counts of *scores* and *is_target*, both (N, C), for some classes each."""
    classes = max(1, MAX_SORTED_SCORES // len(scores))
    return map(_count_sorted, torch.split(scores.T, classes), torch.split(is_target.T, classes))


def _count_sorted(scores: Tensor, is_target: Tensor) -> ThresholdCounts:
    """Return the counts of *scores* and *is_target*, both (C, N), with one sort for all classes."""
    count = scores.shape[1]
    ordered, order = scores.contiguous().sort(dim=1, descending=True)
    is_last = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[:, 1:], ordered[:, :-1], out=is_last[:, :-1])  # equal scores are one threshold
    hits = is_target.gather(1, order).cumsum(1)
    classes, positions = is_last.nonzero(as_tuple=True)
    true_positives = hits[is_last]
    return ThresholdCounts(
        classes, true_positives, positions + 1 - true_positives, hits[:, -1], count - hits[:, -1]
    )
