"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.data import Batch
from stages.models import backward


class SimClr(nn.Module):
    """Features that two views of an image share. Chen et al., "A Simple Framework for …", 2020.

    A view is assigned to the other view of its image among those of the batch, which is a classification
    with a class for each image. `project` is used in training only.
    """

    def __init__(
        self, input_shape: Sequence[int], *, width: int = 32, features: int = 64, temperature: float = 0.2
    ) -> None:
        super().__init__()
        self.temperature = temperature
        layers: list[nn.Module] = []
        for before, after in ((input_shape[0], width), (width, features)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
        self.encode = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten())
        size = features * (input_shape[1] // 2) * (input_shape[2] // 2)
        self.project = nn.Sequential(nn.Linear(size, features), nn.ReLU(), nn.Linear(features, features))

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of *images* (B, C, H, W), of length 1: (B, features · H / 2 · W / 2)."""
        return F.normalize(self.encode(images), dim=1)

    def valid_step(self, batch: Batch) -> ClassificationOutput:
        """Return the loss of a batch with two views of each image; a logit is the similarity of two views."""
        first, second = (F.normalize(self.project(self.encode(view)), dim=1) for view in batch.inputs)
        logits = first @ second.T / self.temperature
        partners = torch.arange(len(logits), device=logits.device)
        loss = (F.cross_entropy(logits, partners) + F.cross_entropy(logits.T, partners)) / 2
        return ClassificationOutput(loss, logits, partners)

    def train_step(self, batch: Batch) -> TrainOutput[ClassificationOutput]:
        """Return the gradients of the loss of a batch, and its output."""
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)
