"""The area under a curve that only the whole epoch has: every score is kept until it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.metrics.chunks import Chunks
from stages.metrics.confusion import Classified, Reduction, reduction_named, rows_of

Area = Callable[[Tensor, Tensor], float]
"""From scores (N,) and whether each is of a right class (N,) to an area; NaN where there is none."""


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
    """The scores of an epoch so far, on their device; sorted each time the value is asked for."""

    batches: Chunks[Batch]
    weight: int | Tensor
    """The number of samples, or positions; a scalar on an accelerator."""
    area: Area
    reduction: Reduction

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.batches + other.batches, self.weight + other.weight, self.area, self.reduction)

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
        areas = [self.area(*column) for column in zip(scores.T, right.T, strict=True)]
        return 100.0 * torch.tensor(areas, dtype=torch.float64).nanmean().item()


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

        Raises `BuilderError` if the shapes do not fit.
        """
        rows = rows_of(output, self.name)
        batch = Batch(rows.logits.clone(), rows.right, rows.real, rows.independent)
        return Scores(Chunks(((batch,),)), rows.weight, self.area, self.reduction)

    @staticmethod
    def area(scores: Tensor, right: Tensor) -> float:
        """Of scores (N,), of which some are *right*; NaN where there is none."""
        raise NotImplementedError


class AurocMetric(AreaMetric):
    """The area under the receiver operating characteristic.

    A class that all samples have, or none, has no such area and is left out (Burn ≤0.21 counts it as 0).
    """

    title = "AUROC"

    @staticmethod
    def area(scores: Tensor, right: Tensor) -> float:
        """How likely a right one outranks a wrong one, a tie being a half; NaN where there are not both."""
        hits, false_alarms = _thresholds(scores, right)
        return float(torch.trapezoid(hits, false_alarms) / (hits[-1] * false_alarms[-1]))


class AucPrMetric(AreaMetric):
    """The area under the curve of precision over recall, as average precision (no interpolation).

    A class that no sample has is left out; with none left it is NaN (Burn says 50).
    """

    title = "AUC-PR"

    @staticmethod
    def area(scores: Tensor, right: Tensor) -> float:
        """Precision at each threshold, weighed by the recall it adds; NaN where none is right."""
        hits, false_alarms = _thresholds(scores, right)
        precision = hits[1:] / (hits[1:] + false_alarms[1:])
        return float((precision * hits.diff()).sum() / hits[-1])


def _thresholds(scores: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Hits and false alarms from above the highest score down to the lowest, equal scores at once."""
    ordered, order = scores.sort(descending=True)
    last = torch.cat([ordered.diff() != 0, torch.ones(1, dtype=torch.bool)])
    hits = right[order].cumsum(0)
    ranks = torch.arange(1, len(scores) + 1)
    zero = torch.zeros(1, dtype=torch.int64)
    return torch.cat([zero, hits[last]]).double(), torch.cat([zero, (ranks - hits)[last]]).double()
