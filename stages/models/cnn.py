"""The network of the Burn book's guide, for images of any size.

Source: the Burn book, Basic Workflow, Model. The guide has one input channel and 28×28 pixels.
"""

import torch
from torch import Tensor, nn

from stages.contracts.errors import BuilderError
from stages.models.steps import ClassificationStep


class Cnn(ClassificationStep, nn.Module):
    """A convolutional classifier.

    Its layers are conv, dropout, conv, dropout, ReLU, pool, linear, dropout, ReLU, linear.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        *,
        channels: tuple[int, int] = (8, 16),
        kernel_size: int = 3,
        pool_size: int = 8,
        hidden_size: int = 512,
        dropout: float = 0.5,
    ) -> None:
        """Create the layers.

        Args:
            input_shape: The shape (channels, height, width) of one image.
            num_outputs: The number of classes.
            channels: The output channels of the two convolutions.
            kernel_size: The height and width of their kernels.
            pool_size: The height and width after the adaptive pool, for images of any size.
            hidden_size: The number of units of the first linear layer.
            dropout: The dropout rate.

        Raises:
            BuilderError: If *input_shape* is not that of an image, or the image is too small.
        """
        super().__init__()
        smallest = 2 * kernel_size - 1
        if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
            raise BuilderError(
                f"model 'cnn' takes images (channels, height, width) of {smallest}×{smallest} pixels or "
                f"more, found inputs of shape {tuple(input_shape)}. Use 'mlp', which takes any shape"
            )
        self.conv1 = nn.Conv2d(input_shape[0], channels[0], kernel_size)
        self.conv2 = nn.Conv2d(channels[0], channels[1], kernel_size)
        self.pool = nn.AdaptiveAvgPool2d(pool_size)
        self.dropout = nn.Dropout(dropout)
        self.linear1 = nn.Linear(channels[1] * pool_size * pool_size, hidden_size)
        self.linear2 = nn.Linear(hidden_size, num_outputs)
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes) of *images* (B, C, H, W)."""
        x = self.dropout(self.conv1(images))
        x = self.dropout(self.conv2(x))
        x = self.pool(self.activation(x))
        x = self.dropout(self.linear1(torch.flatten(x, 1)))
        logits: Tensor = self.linear2(self.activation(x))
        return logits
