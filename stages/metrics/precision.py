"""Precision, recall and the F score of an epoch's counts."""

from typing import ClassVar, Self

import torch

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.contracts.text import number
from stages.metrics.confusion import (
    ByOutput,
    Classified,
    Confusion,
    Cost,
    Threshold,
    TopK,
    reduction_named,
    rows_of,
)


class ConfusionMetric:
    """A score of the predicted and the right classes, class by class, in percent.

    The output is logits. With a *threshold* each class above it is predicted, with a *top_k* the most likely
    ones. Without either the output decides: a model with one class per sample predicts the most likely one,
    and a model with several labels or a single logit each label above 0.5. A single logit is a binary model,
    whose class 1 is measured; two logits are two classes, each against the other. See
    `stages.metrics.labels` for the shapes, ties, NaN and ignored targets.
    """

    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, MultiLabelClassificationOutput)

    def __init__(
        self, title: str, cost: Cost, *, threshold: float | None, top_k: int | None, reduction: str
    ) -> None:
        self.cost = cost
        self.rule = _rule(title, threshold, top_k)
        self.reduction = reduction_named(reduction, title)
        rule = "" if isinstance(self.rule, ByOutput) else f" @ {self.rule}"
        self.name = f"{title}{rule} [{self.reduction.capitalize()}]"

    def measure(self, output: Classified) -> Confusion:
        """Return the counts of one batch. Raises `BuilderError` if the shapes do not fit."""
        rows = rows_of(output, self.name)
        predicted, right = self.rule.decide(rows), rows.right
        if rows.real is not None:
            predicted = predicted & rows.real.unsqueeze(1)
        counts = torch.stack([(predicted & right).sum(0), predicted.sum(0), right.sum(0)])
        return Confusion(counts, rows.weight, self.cost, self.reduction)


class _Rate(ConfusionMetric):
    """A score that needs no more than a rule and a reduction."""

    title: ClassVar[str]
    errors: ClassVar[Cost]

    def __init__(
        self, *, threshold: float | None = None, top_k: int | None = None, reduction: str = "macro"
    ) -> None:
        super().__init__(self.title, self.errors, threshold=threshold, top_k=top_k, reduction=reduction)

    @classmethod
    def binary(cls, threshold: float = 0.5) -> Self:
        """Of a model with one logit."""
        return cls(threshold=threshold)

    @classmethod
    def multiclass(cls, top_k: int = 1, reduction: str = "macro") -> Self:
        """Of a model that gives the *top_k* likeliest classes."""
        return cls(top_k=top_k, reduction=reduction)

    @classmethod
    def multilabel(cls, threshold: float = 0.5, reduction: str = "macro") -> Self:
        """Of a model that gives every label above the *threshold*."""
        return cls(threshold=threshold, reduction=reduction)


class PrecisionMetric(_Rate):
    """How much of what was given is right."""

    title = "Precision"
    errors = Cost(1.0, 0.0)


class RecallMetric(_Rate):
    """How much of what is right was given."""

    title = "Recall"
    errors = Cost(0.0, 1.0)


class FBetaScoreMetric(ConfusionMetric):
    """The harmonic mean of precision and recall, where recall weighs *beta* times as much."""

    def __init__(
        self,
        beta: float = 1.0,
        *,
        threshold: float | None = None,
        top_k: int | None = None,
        reduction: str = "macro",
    ) -> None:
        if not beta > 0:
            raise BuilderError(f"FBetaScore takes a beta above 0, not {number(beta)}")
        title, cost = f"FBetaScore ({number(beta)})", Cost(1.0, beta * beta)
        super().__init__(title, cost, threshold=threshold, top_k=top_k, reduction=reduction)

    @classmethod
    def binary(cls, beta: float = 1.0, threshold: float = 0.5) -> Self:
        """Of a model with one logit."""
        return cls(beta, threshold=threshold)

    @classmethod
    def multiclass(cls, beta: float = 1.0, top_k: int = 1, reduction: str = "macro") -> Self:
        """Of a model that gives the *top_k* likeliest classes."""
        return cls(beta, top_k=top_k, reduction=reduction)

    @classmethod
    def multilabel(cls, beta: float = 1.0, threshold: float = 0.5, reduction: str = "macro") -> Self:
        """Of a model that gives every label above the *threshold*."""
        return cls(beta, threshold=threshold, reduction=reduction)


def _rule(title: str, threshold: float | None, top_k: int | None) -> Threshold | TopK | ByOutput:
    """Return the rule for these arguments. Without any, Burn has a threshold of 0.5 for every output."""
    if threshold is not None and top_k is not None:
        raise BuilderError(f"{title} takes a threshold ({number(threshold)}) or a top_k ({top_k}), not both")
    if threshold is not None:
        return Threshold(threshold)
    if top_k is None:
        return ByOutput()
    if top_k < 1:
        raise BuilderError(f"{title} takes a top_k of 1 or more, not {top_k}")
    return TopK(top_k)
