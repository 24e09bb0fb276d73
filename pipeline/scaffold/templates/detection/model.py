"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.contracts.outputs import DetectionOutput, TrainOutput
from stages.data import Batch
from stages.models import backward

STRIDE = 4
"""The height and the width of a cell in pixels."""
RARE = -4.0
"""The first logits: few cells have a box. Lin et al., "Focal Loss for Dense Object Detection", 2017."""


class CenterDetector(nn.Module):
    """A score for each class, and a box, in each cell of 4×4 pixels of an image.

    The cell with the center of a box predicts it, as in Zhou et al., "Objects as Points", 2019. It takes
    images (B, channels, height, width) of any size that 4 divides.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: Mapping[str, int],
        *,
        width: int = 24,
        max_boxes: int = 10,
    ) -> None:
        super().__init__()
        self.max_boxes = max_boxes
        deep = 2 * width
        self.features = nn.Sequential(
            *convolve(input_shape[0], width),
            nn.MaxPool2d(2),
            *convolve(width, deep),
            nn.MaxPool2d(2),
            *convolve(deep, deep),
        )
        self.scores = nn.Conv2d(deep, num_classes["labels"], kernel_size=3, padding=1)
        self.sides = nn.Conv2d(deep, 4, kernel_size=3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (B, classes, rows, columns) of *images*, and the boxes (B, 4, rows, columns).

        A box is left, top, right and bottom in pixels.
        """
        features = self.features(images)
        y, x = (STRIDE * (torch.arange(size, device=images.device) + 0.5) for size in features.shape[2:])
        centers = torch.stack((x.expand(len(y), -1), y[:, None].expand(-1, len(x))))
        near, far = (STRIDE * self.sides(features)).chunk(2, dim=1)
        return self.scores(features) + RARE, torch.cat((centers - near, centers + far), dim=1)

    def valid_step(self, batch: Batch) -> DetectionOutput:
        """Return the loss of a batch, the predicted boxes and the targets."""
        logits, boxes = self(batch.inputs)
        targets = [
            {"boxes": rows, "labels": labels}
            for rows, labels in zip(batch.targets["boxes"], batch.targets["labels"], strict=True)
        ]
        return DetectionOutput(self._loss(logits, boxes, targets), self._choose(logits, boxes), targets)

    def train_step(self, batch: Batch) -> TrainOutput[DetectionOutput]:
        """Return the gradients of the loss of a batch, and its output."""
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)

    def _loss(self, logits: Tensor, boxes: Tensor, targets: list[dict[str, Tensor]]) -> Tensor:
        """Return the focal loss of the scores and the distance of the boxes, for each image on average."""
        is_center = torch.zeros_like(logits)
        distance = logits.new_zeros(())
        for number, target in enumerate(targets):
            x, y = ((target["boxes"][:, :2] + target["boxes"][:, 2:]) / 2 // STRIDE).long().T
            is_center[number, target["labels"], y, x] = 1
            distance = distance + F.l1_loss(boxes[number, :, y, x].T, target["boxes"], reduction="sum")
        entropy = F.binary_cross_entropy_with_logits(logits, is_center, reduction="none")
        focal = (1 - torch.exp(-entropy)) ** 2 * entropy
        return (focal.sum() + 0.1 * distance) / len(targets)

    @torch.no_grad()
    def _choose(self, logits: Tensor, boxes: Tensor) -> list[dict[str, Tensor]]:
        """Return the `max_boxes` boxes of each image whose scores are the highest of their 3×3 cells."""
        is_highest = logits == F.max_pool2d(logits, 3, stride=1, padding=1)
        ranked = torch.where(is_highest, logits.sigmoid(), 0).flatten(1).topk(self.max_boxes)
        cells = logits[0, 0].numel()
        return [
            {"boxes": rows[:, cell % cells].T, "scores": scores, "labels": cell // cells}
            for rows, scores, cell in zip(boxes.flatten(2), ranked.values, ranked.indices, strict=True)
        ]


def convolve(before: int, after: int) -> list[nn.Module]:
    """Return a convolution that keeps the size of an image, with a normalization and a ReLU."""
    return [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
