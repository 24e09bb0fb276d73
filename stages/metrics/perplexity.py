"""How many tokens a model is, on average, undecided between."""

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F

from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, SequenceOutput
from stages.metrics.labels import Labelled, logits_of
from stages.metrics.mean import Mean

NO_TOKEN = -100
"""What torch's cross entropy leaves out by itself."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """e to the power of a mean; adding two is that of the mean over both."""

    mean: Mean

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.mean + other.mean)

    @property
    def value(self) -> float:
        """NaN of nothing; infinite where a float64 cannot hold it."""
        try:
            return math.exp(self.mean.value)
        except OverflowError:
            return math.inf

    @property
    def count(self) -> int:
        """How many tokens."""
        return self.mean.count


class PerplexityMetric:
    """e to the power of the mean negative log likelihood of the tokens, padding excluded."""

    name = "Perplexity"
    unit = None
    better = Direction.LOWEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token
        """A target that is no token at all."""

    def measure(self, output: Labelled) -> Exponential:
        """Of one batch; half precision is widened before the logarithm."""
        logits = logits_of(output).detach().flatten(0, -2)
        targets = output.targets.flatten()
        ignored = NO_TOKEN if self.pad_token is None else self.pad_token
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = F.cross_entropy(wide, targets, ignore_index=ignored, reduction="sum")
        return Exponential(Mean.sum(total, (targets != ignored).sum()))
