"""Quick tests of the model and the data, to run before a long training."""

import numpy as np
import torch

from model import Forecaster
from source import waves
from stages.learner import overfit


def test_target_continues_its_sequence() -> None:
    """Without noise, the last three values and the target satisfy the recurrence of a sine wave."""
    arrays = waves(samples=50, noise=0.0)
    before, middle, last = arrays.inputs[:, -3:, 0].T
    target = arrays.targets[:, 0]

    np.testing.assert_allclose((target + middle) * middle, (last + before) * last, atol=1e-5)


def test_repeating_the_last_value_has_the_error_in_the_readme() -> None:
    """The mean absolute error of this prediction is the baseline of the model's."""
    arrays = waves()

    assert 0.31 < np.abs(arrays.inputs[:, -1] - arrays.targets).mean() < 0.33


def test_model_overfits_one_batch() -> None:
    """A hundred steps on one batch halve the loss."""
    torch.manual_seed(0)
    arrays = waves(samples=32)
    batch = torch.from_numpy(arrays.inputs), torch.from_numpy(arrays.targets)
    model = Forecaster((24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    losses = overfit(model, optimizer, batch, steps=100)

    assert losses[-1] < losses[0] / 2
