"""Hits, false alarms and misses of each class, counted over the epoch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.contracts.text import number
from stages.metrics.labels import IGNORED, check_labels, highest, labelled, top

Classified = ClassificationOutput | MultiLabelClassificationOutput


class Reduction(StrEnum):
    """How the numbers of the classes become one. Burn's `ClassReduction`."""

    MACRO = "macro"
    """The mean of the classes' scores."""
    MICRO = "micro"
    """The score of the classes' counts together."""


def reduction_named(name: str, title: str) -> Reduction:
    """The reduction that params call *name*, for the metric *title*."""
    if name not in list(Reduction):
        raise BuilderError(f"{title} takes the reduction {' or '.join(Reduction)}, not {name!r}")
    return Reduction(name)


@dataclass(frozen=True)
class Rows:
    """The logits of a batch as a table with a column for each class, and the classes that are right."""

    logits: Tensor
    """(N, C), off the graph; N counts samples, or positions."""
    right: Tensor
    """(N, C), booleans; of a single logit, class 1."""
    real: Tensor | None
    """(N,), booleans: the rows whose target is not ignored; None for several labels."""
    independent: bool
    """Whether each logit has a probability of its own: several labels, or a binary model's single logit."""

    @property
    def weight(self) -> int | Tensor:
        """The number of rows whose target is not ignored; a scalar on an accelerator."""
        if self.real is None:
            return len(self.right)
        return int(self.real.sum()) if self.real.is_cpu else self.real.sum()

    @property
    def probabilities(self) -> Tensor:
        """Of each class, (N, C)."""
        return self.logits.sigmoid() if self.independent else self.logits.softmax(dim=1)


def rows_of(output: Classified, metric: str) -> Rows:
    """Return *output* as a table. Raises `BuilderError`, naming the *metric*, if its shapes do not fit."""
    if isinstance(output, MultiLabelClassificationOutput):
        check_labels(output, metric)
        return Rows(output.output.detach(), output.targets.bool(), None, independent=True)
    logits, targets, dim = labelled(output, metric)
    targets = targets.flatten()
    if dim is None:
        return Rows(logits.reshape(-1, 1), (targets == 1).unsqueeze(1), targets != IGNORED, independent=True)
    rows = logits if logits.ndim == 2 else logits.movedim(dim, -1).flatten(0, -2)
    right = targets.unsqueeze(1) == torch.arange(rows.shape[1], device=targets.device)
    return Rows(rows, right, targets != IGNORED, independent=False)


@dataclass(frozen=True)
class Threshold:
    """Predicts each class whose probability is above *value*.

    The probability is the sigmoid of the logit for several labels or a single logit, and otherwise the
    softmax over the classes.
    """

    value: float

    def __str__(self) -> str:
        return f"Threshold({number(self.value)})"

    def decide(self, rows: Rows) -> Tensor:
        """Return the predicted classes, (N, C), booleans."""
        return rows.probabilities > self.value


@dataclass(frozen=True)
class TopK:
    """Predicts the *k* classes with the highest logits; of equal logits the first is the highest.

    A row with a NaN predicts no class. A single logit above 0 predicts class 1.
    """

    k: int

    def __str__(self) -> str:
        return f"TopK({self.k})"

    def decide(self, rows: Rows) -> Tensor:
        """Return the predicted classes, (N, C), booleans. Raises `BuilderError` for fewer than k."""
        classes = rows.logits.shape[1]
        if self.k > classes:
            raise BuilderError(f"a metric @ {self} needs {self.k} classes, and the model has {classes}")
        if classes == 1:
            return rows.logits > 0
        if self.k == 1:
            every = torch.arange(classes, device=rows.logits.device)
            return highest(rows.logits, 1).unsqueeze(1) == every
        return top(rows.logits, self.k, 1)


@dataclass(frozen=True)
class ByOutput:
    """Predicts by the kind of output: each label above 0.5, or else the most likely class.

    Several labels, and the single logit of a binary model, have a probability each; of several classes one is
    right. So a model of four classes is not measured with a threshold that no class may exceed.
    """

    def decide(self, rows: Rows) -> Tensor:
        """Return the predicted classes, (N, C), booleans."""
        return (Threshold(0.5) if rows.independent else TopK(1)).decide(rows)


@dataclass(frozen=True)
class Cost:
    """What an error weighs against a hit: (1, 0) makes precision, (0, 1) recall, (1, β²) the F score."""

    false_alarm: float
    miss: float


@dataclass(frozen=True)
class Confusion:
    """The counts of an epoch so far, from which a score is made only when it is asked for."""

    counts: Tensor
    """(3, C) integers: of each class how often it was predicted rightly, predicted, and right."""
    weight: int | Tensor
    """The number of samples, or positions; a scalar on an accelerator."""
    cost: Cost
    reduction: Reduction

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.counts + other.counts, self.weight + other.weight, self.cost, self.reduction)

    @property
    def count(self) -> int:
        """The number of samples, or positions."""
        return int(self.weight)

    @property
    def value(self) -> float:
        """In percent, as scikit-learn has it with ``zero_division=0``: NaN of no samples, and 0 for 0/0.

        A class that no sample has and that is never predicted is left out of the macro mean.
        """
        if not self.count:
            return float("nan")
        counts = self.counts.cpu().double()
        hits, given, right = counts if self.reduction is Reduction.MACRO else counts.sum(1, keepdim=True)
        weight = self.cost.false_alarm * given + self.cost.miss * right
        scores = (self.cost.false_alarm + self.cost.miss) * hits / weight.clamp(min=torch.finfo().tiny)
        seen = scores[given + right > 0]
        return 100.0 * seen.mean().item() if len(seen) else 0.0
