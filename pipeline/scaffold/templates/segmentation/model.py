"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.models import ClassificationStep


class PixelNet(ClassificationStep, nn.Module):
    """Convolutions at full, half and quarter size, whose outputs are joined: a class for each pixel.

    It takes images (B, channels, height, width) of any size from 4×4 pixels.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, *, width: int = 16) -> None:
        super().__init__()
        self.large = convolve(input_shape[0], width)
        self.medium = convolve(width, 2 * width)
        self.small = convolve(2 * width, 4 * width)
        self.output = nn.Conv2d(7 * width, num_classes, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes, height, width) of *images*."""
        large = self.large(images)
        medium = self.medium(F.max_pool2d(large, 2))
        small = self.small(F.max_pool2d(medium, 2))
        size = images.shape[2:]
        joined = torch.cat((large, F.interpolate(medium, size), F.interpolate(small, size)), dim=1)
        logits: Tensor = self.output(joined)
        return logits


def convolve(before: int, after: int) -> nn.Sequential:
    """Return two convolutions that keep the size of an image, each with a normalization and a ReLU."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
    return nn.Sequential(*layers)
