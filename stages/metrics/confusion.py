"""Hits, false alarms and misses of each class, counted over the epoch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.contracts.text import number

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
class Threshold:
    """A class is given where its probability is above *value*.

    The probability is the sigmoid of the logit where there are several labels or a single logit, and the
    softmax over the classes otherwise.
    """

    value: float

    def __str__(self) -> str:
        return f"Threshold({number(self.value)})"

    def decide(self, output: Classified) -> Tensor:
        """Which classes are given, (B, C), booleans."""
        return probabilities(output) > self.value


@dataclass(frozen=True)
class TopK:
    """The *k* classes with the highest logits are given."""

    k: int

    def __str__(self) -> str:
        return f"TopK({self.k})"

    def decide(self, output: Classified) -> Tensor:
        """Which classes are given, (B, C), booleans. Raises `BuilderError` where there are fewer than k."""
        logits = output.output
        if self.k > logits.shape[-1]:
            raise BuilderError(
                f"a metric @ {self} needs {self.k} classes, and the model has {logits.shape[-1]}"
            )
        given = torch.zeros_like(logits, dtype=torch.bool)
        return given.scatter_(1, logits.topk(self.k, dim=1).indices, 1)


def probabilities(output: Classified) -> Tensor:
    """Of each class, (B, C)."""
    logits = output.output.detach()
    return logits.sigmoid() if independent(output) else logits.softmax(dim=1)


def independent(output: Classified) -> bool:
    """Whether each logit stands for itself: several labels, or a binary model's single logit."""
    return output.targets.ndim == 2 or output.output.shape[-1] == 1


def actual(output: Classified) -> Tensor:
    """Which classes are right, (B, C), booleans; of a single logit, class 1."""
    if output.targets.ndim == 2:
        return output.targets.bool()
    if independent(output):
        return output.targets.unsqueeze(1) == 1
    return output.targets.unsqueeze(1) == torch.arange(output.output.shape[-1], device=output.targets.device)


@dataclass(frozen=True)
class Cost:
    """What an error weighs against a hit: (1, 0) makes precision, (0, 1) recall, (1, β²) the F score."""

    false_alarm: float
    miss: float


@dataclass(frozen=True)
class Confusion:
    """The counts of an epoch so far, from which a score is made only when it is asked for."""

    counts: Tensor
    """(3, C) integers: of each class how often it was given rightly, given, and right."""
    count: int
    """How many samples."""
    cost: Cost
    reduction: Reduction

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.counts + other.counts, self.count + other.count, self.cost, self.reduction)

    @property
    def value(self) -> float:
        """In per cent, as scikit-learn has it with ``zero_division=0``: NaN of no samples, and 0 for 0/0.

        A class that no sample has and none was given says nothing: it is left out of the macro mean.
        """
        if not self.count:
            return float("nan")
        counts = self.counts.cpu().double()
        hits, given, right = counts if self.reduction is Reduction.MACRO else counts.sum(1, keepdim=True)
        weight = self.cost.false_alarm * given + self.cost.miss * right
        scores = (self.cost.false_alarm + self.cost.miss) * hits / weight.clamp(min=torch.finfo().tiny)
        seen = scores[given + right > 0]
        return 100.0 * seen.mean().item() if len(seen) else 0.0
