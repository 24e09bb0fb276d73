"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

from torch import nn

from stages.models import ClassificationStep


class DigitNet(ClassificationStep, nn.Sequential):
    """Two blocks of convolution and two linear layers, for images (B, channels, height, width)."""

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        channels: Sequence[int] = (16, 32),
        hidden_size: int = 64,
        dropout: float = 0.25,
    ) -> None:
        depth, height, width = input_shape
        first, second = channels
        super().__init__(
            *convolution_block(depth, first),
            *convolution_block(first, second),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(second * (height // 2) * (width // 2), hidden_size),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_size, num_classes),
        )


def convolution_block(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    """Return layers that keep the height and the width of an image."""
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(channels_out), nn.GELU()
