"""How many tokens a model is, on average, undecided between."""

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, SequenceOutput
from stages.metrics.labels import IGNORED, Labelled, labelled
from stages.metrics.mean import Mean


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
    """e to the power of the mean negative log likelihood of the tokens, or samples.

    A target of -100 is not measured.
    """

    name = "Perplexity"
    unit = None
    better = Direction.LOWEST
    measures = (ClassificationOutput, SequenceOutput)

    def __init__(self, *, pad_token: int | None = None) -> None:
        self.pad_token = pad_token
        """A target that is not measured either."""

    def measure(self, output: Labelled) -> Exponential:
        """Return that of one batch; half precision is widened before the logarithm.

        Raises `BuilderError` if the shapes do not fit, and for a single logit.
        """
        logits, targets, dim = labelled(output, self.name)
        if dim is None:
            raise BuilderError(
                f"metric {self.name!r} takes a logit for each class, and the model's step gives one for each "
                f"target, {tuple(logits.shape)}: register another metric"
            )
        if dim == -1:
            logits, targets = logits.flatten(0, -2), targets.flatten()
        if self.pad_token is not None:
            targets = targets.masked_fill(targets == self.pad_token, IGNORED)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")
        return Exponential(Mean.sum(total, (targets != IGNORED).sum()))
