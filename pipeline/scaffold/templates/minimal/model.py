"""The model. After an edit, `dvc repro` builds and trains it again."""

import math
from collections.abc import Sequence

from torch import nn

from stages.models import ClassificationStep


class Net(ClassificationStep, nn.Sequential):
    """A network with one hidden layer. The shape of an input and the number of classes come from the data."""

    def __init__(self, input_shape: Sequence[int], num_classes: int, width: int = 64) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), width),
            nn.ReLU(),
            nn.Linear(width, num_classes),
        )
