"""The model: a plain module of PyTorch. After an edit, `dvc repro` trains it again."""

import math
from collections.abc import Sequence

from torch import nn


class Net(nn.Sequential):
    """A network with two hidden layers. Its first two arguments come from the data."""

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, *, width: int = 64, dropout: float = 0.2
    ) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, num_classes),
        )
