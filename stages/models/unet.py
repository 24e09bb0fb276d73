"""A U-Net: a class for each pixel of an image.

Source: Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015, with
padded convolutions, so that the output has the size of the image.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.contracts.errors import BuilderError
from stages.models.steps import ClassificationStep


class UNet(ClassificationStep, nn.Module):
    """A convolutional network for segmentation, whose levels halve the height and the width."""

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, *, channels: Sequence[int] = (16, 32, 64)
    ) -> None:
        """Create the layers.

        Args:
            input_shape: The shape (channels, height, width) of one image.
            num_outputs: The number of classes of a pixel.
            channels: The channels of each level, from the highest resolution to the lowest.

        Raises:
            BuilderError: If *input_shape* is not that of an image whose height and width the levels divide.
        """
        super().__init__()
        factor = 2 ** (len(channels) - 1)
        if len(input_shape) != 3 or any(size % factor for size in input_shape[1:]):
            raise BuilderError(
                f"model 'unet' with {len(channels)} levels takes images (channels, height, width) whose "
                f"height and width are multiples of {factor}; found inputs of shape {input_shape}. Resize "
                "them, or set fewer channels"
            )
        steps = [*pairwise(channels)]
        self.down = nn.ModuleList(
            _block(before, after) for before, after in pairwise((input_shape[0], *channels))
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(low, high, 2, stride=2) for high, low in steps)
        self.merge = nn.ModuleList(_block(2 * high, high) for high, _ in steps)
        self.head = nn.Conv2d(channels[0], num_outputs, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes, H, W) of *images* (B, C, H, W)."""
        levels: list[Tensor] = []
        for block in self.down:
            images = block(F.max_pool2d(images, 2) if levels else images)
            levels.append(images)
        pairs = zip(levels[:-1], self.up, self.merge, strict=True)
        for level, up, merge in reversed(list(pairs)):
            images = merge(torch.cat((level, up(images)), dim=1))
        logits: Tensor = self.head(images)
        return logits


def _block(before: int, after: int) -> nn.Sequential:
    """Return two convolutions that keep the size of an image, each with a ReLU."""
    first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
