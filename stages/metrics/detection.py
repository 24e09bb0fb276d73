"""The mean average precision of boxes, as COCO defines it.

The predictions of an image are matched with its targets when it is measured, so that the measurements of
batches add, and the value is that of all images together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from stages.contracts.history import Direction
from stages.contracts.outputs import DetectionOutput

THRESHOLDS = torch.arange(50, 100, 5, dtype=torch.float64, device="cpu") / 100
"""The least overlaps at which a prediction is correct: 0.5 to 0.95."""
RECALLS = torch.arange(101, dtype=torch.float64, device="cpu") / 100
"""The recalls at which the precision is read."""
MAX_PREDICTIONS = 100
"""The number of predictions of a class in an image that are measured, those with the highest scores."""


@dataclass(frozen=True)
class MatchedBoxes:
    """Predicted boxes of several images, matched with the targets."""

    scores: Tensor
    """(D,), float64."""
    labels: Tensor
    """(D,), int64."""
    is_hit: Tensor
    """(D, 10), booleans: whether the box is correct at each of `THRESHOLDS`."""
    target_labels: Tensor
    """(T,), int64: the class of each target."""
    images: int

    has_batch_value: ClassVar[bool] = False

    def __add__(self, other: Self, /) -> Self:
        names, first, second = ("scores", "labels", "is_hit", "target_labels"), vars(self), vars(other)
        joined = {name: torch.cat((first[name], second[name])) for name in names}
        return replace(self, **joined, images=self.images + other.images)

    @property
    def count(self) -> int:
        """The number of images."""
        return self.images

    @property
    def value(self) -> float:
        """The mean over classes with targets, and over thresholds, in percent; NaN without targets."""
        classes = sorted(set(self.target_labels.tolist()))
        if not classes:
            return float("nan")
        return 100 * float(torch.stack([self._measure_class(label) for label in classes]).mean())

    def _measure_class(self, label: int) -> Tensor:
        """Return the average precision of a class at each threshold, (10,)."""
        is_class = self.labels == label
        order = self.scores[is_class].argsort(descending=True, stable=True)
        hits = self.is_hit[is_class][order].double().cumsum(0)
        targets = int((self.target_labels == label).sum())
        precisions = hits / torch.arange(1, len(hits) + 1, dtype=torch.float64, device="cpu")[:, None]
        highest = precisions.flip(0).cummax(0).values.flip(0) if len(hits) else precisions
        places = torch.searchsorted((hits / targets).T.contiguous(), RECALLS.repeat(len(THRESHOLDS), 1))
        padded = torch.cat((highest, highest.new_zeros(1, len(THRESHOLDS))))  # recalls that are not reached
        return padded.T.gather(1, places).mean(1)


class MeanAveragePrecisionMetric:
    """The mean average precision of boxes at overlaps of 0.5 to 0.95, in percent. Lin et al., 2014.

    It measures boxes of all sizes, of which at most the 100 with the highest scores of a class in an image.
    """

    name = "mAP"
    unit = "%"
    better = Direction.HIGHEST
    measures = DetectionOutput

    def measure(self, output: DetectionOutput) -> MatchedBoxes:
        """Return the matches of one batch. Blocks on the device."""
        total = MatchedBoxes(
            torch.zeros(0, dtype=torch.float64, device="cpu"),
            torch.zeros(0, dtype=torch.int64, device="cpu"),
            torch.zeros((0, len(THRESHOLDS)), dtype=torch.bool, device="cpu"),
            torch.zeros(0, dtype=torch.int64, device="cpu"),
            0,
        )
        for predicted, target in zip(output.predictions, output.targets, strict=True):
            total += _match_image(_to_host(predicted), _to_host(target))
        return total


def _to_host(boxes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.detach().cpu() for name, values in boxes.items()}


def _match_image(predicted: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> MatchedBoxes:
    """Return the matches of one image; a box is matched with a target of its class."""
    chosen = [_find_best(predicted, label) for label in sorted(set(predicted["labels"].tolist()))]
    rows = torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.int64, device="cpu")
    boxes, labels = predicted["boxes"][rows].double(), predicted["labels"][rows].long()
    overlaps = measure_overlaps(boxes, target["boxes"].double())
    overlaps[labels[:, None] != target["labels"][None]] = -1
    is_hit = torch.zeros((len(rows), len(THRESHOLDS)), dtype=torch.bool, device="cpu")
    for column, threshold in enumerate(THRESHOLDS.tolist()):
        is_free = torch.ones(len(target["labels"]), dtype=torch.bool, device="cpu")
        for row, overlap in enumerate(overlaps.masked_fill(overlaps < threshold, -1)):
            candidates = torch.where(is_free, overlap, -1)
            if len(candidates) and candidates.max() >= 0:
                is_hit[row, column] = True
                is_free[candidates.argmax()] = False
    return MatchedBoxes(predicted["scores"][rows].double(), labels, is_hit, target["labels"].long(), 1)


def _find_best(predicted: Mapping[str, Tensor], label: int) -> Tensor:
    """Return the rows of the predictions of a class with the highest scores, in that order."""
    rows = (predicted["labels"] == label).nonzero()[:, 0]
    order = predicted["scores"][rows].argsort(descending=True, stable=True)
    return rows[order[:MAX_PREDICTIONS]]


def measure_overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of each of *boxes* (N, 4) with each of *others* (M, 4): (N, M)."""
    corners = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    opposite = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = (opposite - corners).clamp(min=0).prod(2)
    areas = [(part[:, 2:] - part[:, :2]).prod(1) for part in (boxes, others)]
    return common / (areas[0][:, None] + areas[1][None] - common)
