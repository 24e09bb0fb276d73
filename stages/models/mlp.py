"""Multilayer perceptrons: linear layers with ReLU between them, for inputs of any shape."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from stages.models.steps import ClassificationStep, RegressionStep


class Perceptron(nn.Module):
    """A multilayer perceptron without training steps, which flattens its input."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        *,
        hidden_sizes: Sequence[int] = (64,),
        dropout: float = 0.0,
    ) -> None:
        """Create the layers.

        Args:
            input_shape: The shape of one input, of any number of dimensions.
            num_outputs: The number of classes or of predicted numbers.
            hidden_sizes: The number of units of each hidden layer.
            dropout: The dropout rate after each hidden layer.
        """
        super().__init__()
        sizes = [math.prod(input_shape), *hidden_sizes, num_outputs]
        self.layers = nn.ModuleList(nn.Linear(size, after) for size, after in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs (B, num_outputs) of *inputs* (B, …)."""
        x = torch.flatten(inputs, 1)
        for layer in self.layers[:-1]:
            x = self.dropout(self.activation(layer(x)))
        outputs: Tensor = self.layers[-1](x)
        return outputs


class Mlp(ClassificationStep, Perceptron):
    """A multilayer perceptron for classification."""


class MlpRegressor(RegressionStep, Perceptron):
    """A multilayer perceptron for regression."""
