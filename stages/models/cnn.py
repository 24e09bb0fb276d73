"""The network of the Burn book's guide, for images of any size.

Source: the Burn book, Basic Workflow, Model. The guide has one input channel and 28×28 pixels.
"""

import torch
from torch import Tensor, nn

from stages.contracts.errors import BuilderError
from stages.models.steps import ClassificationStep


class AveragePool(nn.Module):
    """The adaptive average pool of torch, as two products of matrices: for images of *height* × *width*.

    The backward pass of torch's own has no deterministic implementation on CUDA.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, height: int, width: int, pool_size: int) -> None:
        super().__init__()
        self.pool_size = pool_size
        self.register_buffer("rows", pool_weights(height, pool_size), persistent=False)
        self.register_buffer("columns", pool_weights(width, pool_size), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the averages (B, C, P, P) of *images* (B, C, H, W), which may have any size."""
        rows, columns = (
            weights if weights.shape[1] == size else pool_weights(size, self.pool_size).to(images.device)
            for weights, size in zip((self.rows, self.columns), images.shape[-2:], strict=True)
        )
        return rows @ images @ columns.T


def pool_weights(size: int, pool_size: int) -> Tensor:
    """Return the weights (P, S) of the *size* pixels S of a row or column in its *pool_size* averages P.

    Average i is that of the pixels from ``floor(i * S / P)`` to ``ceil((i + 1) * S / P)``, as in torch.
    """
    number = torch.arange(pool_size)[:, None]
    first, end = number * size // pool_size, -(-(number + 1) * size // pool_size)
    pixels = torch.arange(size)
    is_inside = (first <= pixels) & (pixels < end)
    return is_inside / is_inside.sum(1, keepdim=True)


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
        height, width = (size - smallest + 1 for size in input_shape[1:])
        self.pool = AveragePool(height, width, pool_size)
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
