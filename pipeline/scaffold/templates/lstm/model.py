"""The model. After an edit, `dvc repro` builds and trains it again."""

from collections.abc import Sequence

from torch import Tensor, nn

from stages.models import RegressionStep


class Forecaster(RegressionStep, nn.Module):
    """An LSTM, and a linear layer that predicts the next value from its last output.

    The number of features of an element, F, comes from the data.
    """

    def __init__(
        self, input_shape: Sequence[int], *, width: int = 32, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_shape[-1], width, layers, batch_first=True, dropout=dropout)
        self.output = nn.Linear(width, input_shape[-1])

    def forward(self, sequences: Tensor) -> Tensor:
        """Return the predicted element after each of *sequences* (B, T, F): (B, F)."""
        outputs, _ = self.lstm(sequences)
        predictions: Tensor = self.output(outputs[:, -1])
        return predictions
