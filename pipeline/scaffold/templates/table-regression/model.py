"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from stages.models import RegressionStep


class Regressor(RegressionStep, nn.Sequential):
    """A network with two hidden layers, for rows of features (B, F), which predicts one number for each."""

    def __init__(self, input_shape: Sequence[int], width: int = 64) -> None:
        super().__init__(
            nn.Linear(input_shape[0], width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the Huber loss, on which prices far from the others have less influence."""
        return F.huber_loss(predictions, targets)
