"""Quick tests of the training loop, to run before a long training."""

import torch

from model import Net
from train import run_epoch


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return two batches of points whose class is the sign of their first number."""
    inputs = torch.randn(2, 32, 4, generator=torch.Generator().manual_seed(0))
    return [(each, (each[:, 0] > 0).long()) for each in inputs]


def test_training_lowers_the_loss() -> None:
    """Twenty epochs halve the loss."""
    torch.manual_seed(0)
    model = Net((4,), 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    losses = [
        dict(run_epoch(model, optimizer, make_batches(), torch.device("cpu")))["Loss"] for _ in range(20)
    ]

    assert losses[-1] < losses[0] / 2


def test_evaluation_changes_no_weight_and_drops_nothing() -> None:
    """Two evaluations have the same values, since dropout is off and nothing is updated."""
    torch.manual_seed(0)
    model = Net((4,), 2)

    first, second = (run_epoch(model, None, make_batches(), torch.device("cpu")) for _ in range(2))

    assert first == second
