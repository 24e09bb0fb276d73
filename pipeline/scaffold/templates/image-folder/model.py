"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

from torch import nn

from stages.models import ClassificationStep


class ImageNet(ClassificationStep, nn.Sequential):
    """A convolution for each number in *channels*, which halves the image, and a linear layer.

    The average over all places makes it a model for images (B, channels, height, width) of any size
    from 8×8 pixels.
    """

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, channels: Sequence[int] = (16, 32, 64)
    ) -> None:
        layers: list[nn.Module] = []
        for depth, after in zip((input_shape[0], *channels), channels, strict=False):
            layers += [
                nn.Conv2d(depth, after, kernel_size=3, padding=1),
                nn.GroupNorm(4, after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        head = nn.Linear(channels[-1], num_classes)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
