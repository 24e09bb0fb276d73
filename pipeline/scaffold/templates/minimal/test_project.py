"""Quick tests of the model and the data, to run before a long training."""

import torch

from model import Net
from source import spirals
from stages.learner import overfit


def test_data_has_every_class_and_finite_inputs() -> None:
    """Every class occurs, and no input is infinite or NaN."""
    arrays = spirals(samples=90)

    assert sorted(set(arrays.targets.tolist())) == [0, 1, 2]
    assert bool(torch.from_numpy(arrays.inputs).isfinite().all())


def test_model_overfits_one_batch() -> None:
    """Fifty steps on one batch halve the loss."""
    torch.manual_seed(0)
    arrays = spirals(samples=90)
    batch = torch.from_numpy(arrays.inputs), torch.from_numpy(arrays.targets)
    model = Net((2,), 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    losses = overfit(model, optimizer, batch, steps=50)

    assert losses[-1] < losses[0] / 2
