"""Precision, recall and F score, from counts per class that add over an epoch."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from stages.contracts.burn import Version
from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.contracts.text import number
from stages.metrics.class_targets import (
    AnyClassificationOutput,
    ClassTable,
    Reduction,
    argmax_class,
    build_class_table,
    compute_once,
    parse_reduction,
    top_k_mask,
)


@dataclass(frozen=True)
class Threshold:
    """Predicts each class whose probability is above *value*.

    The probability is the sigmoid of the logit for several labels or a single logit, and otherwise the
    softmax over the classes.
    """

    value: float

    def __str__(self) -> str:
        return f"Threshold({number(self.value)})"

    def predict(self, table: ClassTable) -> Tensor:
        """Return the predicted classes, (N, C), booleans."""
        return table.probabilities > self.value


@dataclass(frozen=True)
class TopK:
    """Predicts the *k* classes with the highest logits; of equal logits the first is the highest.

    A row that contains NaN predicts no class. A single logit above 0 predicts class 1.
    """

    k: int

    def __str__(self) -> str:
        return f"TopK({self.k})"

    def predict(self, table: ClassTable) -> Tensor:
        """Return the predicted classes, (N, C), booleans.

        Raises `BuilderError` if there are fewer than *k* classes.
        """
        classes = table.logits.shape[1]
        if self.k > classes:
            raise BuilderError(
                f"a metric @ {self} needs {self.k} classes, but the model has {classes}: "
                f"set top_k to {classes} or less"
            )
        if classes == 1:
            return table.logits > 0
        if self.k == 1:
            indices = torch.arange(classes, device=table.logits.device)
            return argmax_class(table.logits, 1).unsqueeze(1) == indices
        return top_k_mask(table.logits, self.k, 1)


@dataclass(frozen=True)
class DefaultRule:
    """Predicts each label above 0.5 if the labels are independent, and otherwise the most likely class.

    Several labels, or the single logit of a binary model, have a probability each; of several classes one is
    correct. A model of four classes is therefore not measured with a threshold that no class may exceed.
    """

    def predict(self, table: ClassTable) -> Tensor:
        """Return the predicted classes, (N, C), booleans."""
        return (Threshold(0.5) if table.has_independent_classes else TopK(1)).predict(table)


Rule = Threshold | TopK | DefaultRule
"""Predicts the classes of a batch."""


@dataclass(frozen=True)
class ErrorWeights:
    """The weight of errors relative to a hit: (1, 0) is precision, (0, 1) recall, (1, β²) the F score."""

    false_positive: float
    false_negative: float


@dataclass(frozen=True)
class _Counts:
    """Counts per class over an epoch, from which a score is computed when it is read."""

    counts: Tensor
    """(3, C) integers: how often each class was a true positive, was predicted, and was the target."""
    weight: int | Tensor
    """The number of samples or positions; a scalar tensor on an accelerator."""

    def __add__(self, other: Self, /) -> Self:
        return replace(self, counts=self.counts + other.counts, weight=self.weight + other.weight)

    @property
    def count(self) -> int:
        """The number of samples or positions."""
        return int(self.weight)


@dataclass(frozen=True)
class ClassCounts(_Counts):
    """Counts with the score that is computed from them."""

    errors: ErrorWeights
    reduction: Reduction
    counts_absent: bool = False
    """True to count a class that is neither a target nor predicted as 0 in the macro mean, as Burn 0.22."""

    def state_dict(self) -> dict[str, Any]:
        """Return the counts; the score they are for belongs to the metric."""
        return {"counts": self.counts, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> Self:
        """Return the counts of *state*, for the score of this value."""
        return replace(self, counts=state["counts"], weight=state["weight"])

    @property
    def value(self) -> float:
        """The score in percent, as scikit-learn with ``zero_division=0``: 0 for 0/0, NaN without samples.

        A class that is neither the target of a sample nor predicted is left out of the macro mean, unless
        *counts_absent*.
        """
        if not self.count:
            return float("nan")
        counts = self.counts.cpu().double()
        if self.reduction is Reduction.MICRO:
            counts = counts.sum(1, keepdim=True)
        hits, predicted, targets = counts
        false_positive, false_negative = self.errors.false_positive, self.errors.false_negative
        weight = false_positive * predicted + false_negative * targets
        scores = (false_positive + false_negative) * hits / weight.clamp(min=torch.finfo().tiny)
        if not self.counts_absent:
            scores = scores[predicted + targets > 0]
        return 100.0 * scores.mean().item() if len(scores) else 0.0


class ClassScoreMetric:
    """A score of predicted and target classes, computed per class, in percent.

    The model's output is logits. With a *threshold* each class above it is predicted, with *top_k* the most
    likely ones. Without either the output decides: a model with one class per sample predicts the most likely
    one, and a model with several labels or a single logit each label above 0.5 (Burn uses a threshold of 0.5
    for every output). A single logit is a binary model, of which class 1 is measured; two logits are two
    classes, each against the other. See `stages.metrics.class_targets` for shapes, ties, NaN and ignored
    targets.

    Args:
        threshold: the probability above which a class is predicted.
        top_k: the number of classes that are predicted.
        reduction: ``macro`` or ``micro``, see `Reduction`.

    Raises `BuilderError` for arguments that contradict each other or are out of range.
    """

    unit = "%"
    better = Direction.HIGHEST
    measures = (ClassificationOutput, MultiLabelClassificationOutput)
    title: str
    """The first part of the name."""
    errors: ErrorWeights
    """The weights of errors, which determine the score."""

    def __init__(
        self, *, threshold: float | None = None, top_k: int | None = None, reduction: str = "macro"
    ) -> None:
        self.burn: Version | None = None
        """The version of Burn that the run follows, which sets it."""
        self.rule = _build_rule(self.title, threshold, top_k)
        self.reduction = parse_reduction(reduction, self.title)
        rule = "" if isinstance(self.rule, DefaultRule) else f" @ {self.rule}"
        self.name = f"{self.title}{rule} [{self.reduction.capitalize()}]"

    def measure(self, output: AnyClassificationOutput) -> ClassCounts:
        """Return the counts of one batch. Raises `BuilderError` if the shapes do not match."""
        counts, weight = count_classes(output, self.rule, self.name)
        counts_absent = self.burn == "0.22" and 0.0 in vars(self.errors).values()  # no F score
        return ClassCounts(counts, weight, self.errors, self.reduction, counts_absent)


def count_classes(output: AnyClassificationOutput, rule: Rule, metric: str) -> tuple[Tensor, int | Tensor]:
    """Return the counts of one batch, as of `ClassCounts`, and their weight; no score changes them.

    Raises `BuilderError`, which names the *metric*, if the shapes do not match.
    """

    def count() -> tuple[Tensor, int | Tensor]:
        table = compute_once(output, ClassTable, lambda: build_class_table(output, metric))
        predicted, is_target = rule.predict(table), table.is_target
        if table.is_counted is not None:
            predicted = predicted & table.is_counted.unsqueeze(1)
        counts = torch.stack([(predicted & is_target).sum(0), predicted.sum(0), is_target.sum(0)])
        return counts, table.weight

    return compute_once(output, rule, count)


class _RateMetric(ClassScoreMetric):
    """A score without parameters other than a rule and a reduction."""

    @classmethod
    def binary(cls, threshold: float = 0.5) -> Self:
        """Build the metric for a model with one logit."""
        return cls(threshold=threshold)

    @classmethod
    def multiclass(cls, top_k: int = 1, reduction: str = "macro") -> Self:
        """Build the metric for a model that predicts the *top_k* most likely classes."""
        return cls(top_k=top_k, reduction=reduction)

    @classmethod
    def multilabel(cls, threshold: float = 0.5, reduction: str = "macro") -> Self:
        """Build the metric for a model that predicts every label above the *threshold*."""
        return cls(threshold=threshold, reduction=reduction)


class PrecisionMetric(_RateMetric):
    """The fraction of predicted classes that are correct, in percent."""

    title = "Precision"
    errors = ErrorWeights(1.0, 0.0)


class RecallMetric(_RateMetric):
    """The fraction of target classes that are predicted, in percent."""

    title = "Recall"
    errors = ErrorWeights(0.0, 1.0)


class FBetaScoreMetric(ClassScoreMetric):
    """The weighted harmonic mean of precision and recall; recall has *beta* times the weight.

    Args:
        beta: above 0; 1 is the F1 score.
        threshold: the probability above which a class is predicted.
        top_k: the number of classes that are predicted.
        reduction: ``macro`` or ``micro``, see `Reduction`.

    Raises `BuilderError` for arguments that contradict each other or are out of range.
    """

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
        self.title, self.errors = f"FBetaScore ({number(beta)})", ErrorWeights(1.0, beta * beta)
        super().__init__(threshold=threshold, top_k=top_k, reduction=reduction)

    @classmethod
    def binary(cls, beta: float = 1.0, threshold: float = 0.5) -> Self:
        """Build the metric for a model with one logit."""
        return cls(beta, threshold=threshold)

    @classmethod
    def multiclass(cls, beta: float = 1.0, top_k: int = 1, reduction: str = "macro") -> Self:
        """Build the metric for a model that predicts the *top_k* most likely classes."""
        return cls(beta, top_k=top_k, reduction=reduction)

    @classmethod
    def multilabel(cls, beta: float = 1.0, threshold: float = 0.5, reduction: str = "macro") -> Self:
        """Build the metric for a model that predicts every label above the *threshold*."""
        return cls(beta, threshold=threshold, reduction=reduction)


class CorrelationCounts(_Counts):
    """Counts for Matthews' coefficient, of both classes for a single logit."""

    @property
    def value(self) -> float:
        """The coefficient, from -1 to 1: 0 for 0/0, as scikit-learn, and NaN without samples."""
        if not self.count:
            return float("nan")
        hits, predicted, targets = self.counts.cpu().double()
        total = float(self.count)
        covariance = total * hits.sum() - predicted.dot(targets)
        spread = (total**2 - predicted.dot(predicted)) * (total**2 - targets.dot(targets))
        return (covariance / spread.sqrt()).item() if spread > 0 else 0.0


class MatthewsCorrelationCoefficientMetric:
    """The correlation of predicted and target classes, from -1 to 1; Gorodkin's for several classes.

    Args:
        threshold: the probability above which class 1 of a single logit is predicted. Default: the most
            likely class is predicted.

    Burn's metric of this name, which is new in 0.23. It takes one class per sample. Matthews, 1975.
    """

    unit = None
    decimals = 4
    better = Direction.HIGHEST
    measures = ClassificationOutput

    def __init__(self, threshold: float | None = None) -> None:
        self.rule = TopK(1) if threshold is None else Threshold(threshold)
        rule = "Multiclass" if threshold is None else self.rule
        self.name = f"MatthewsCorrelationCoefficient @ {rule}"

    @classmethod
    def binary(cls, threshold: float = 0.5) -> Self:
        """Build the metric for a model with one logit."""
        return cls(threshold)

    @classmethod
    def multiclass(cls) -> Self:
        """Build the metric for a model that predicts the most likely class."""
        return cls()

    def measure(self, output: ClassificationOutput) -> CorrelationCounts:
        """Return the counts of one batch. Raises `BuilderError` if the shapes do not match."""
        counts, weight = count_classes(output, self.rule, self.name)
        if counts.shape[1] == 1:
            hits, predicted, targets = counts
            others = torch.stack([weight - predicted - targets + hits, weight - predicted, weight - targets])
            counts = torch.cat([counts, others], dim=1)
        return CorrelationCounts(counts, weight)


def _build_rule(title: str, threshold: float | None, top_k: int | None) -> Rule:
    """Return the rule for these arguments. Raises `BuilderError`, which names the metric *title*."""
    if threshold is not None and top_k is not None:
        raise BuilderError(
            f"{title} takes a threshold ({number(threshold)}) or a top_k ({top_k}), not both: remove one"
        )
    if threshold is not None:
        return Threshold(threshold)
    if top_k is None:
        return DefaultRule()
    if top_k < 1:
        raise BuilderError(f"{title} takes a top_k of 1 or more, not {top_k}")
    return TopK(top_k)
