"""What must hold of the model and the data before it is worth to train: seconds, not hours."""

import torch

from model import Net
from source import spirals


def test_the_data_has_every_class_and_no_gap() -> None:
    """Every class is there, and every number is one."""
    arrays = spirals(samples=90)

    assert sorted(set(arrays.targets.tolist())) == [0, 1, 2]
    assert bool(torch.from_numpy(arrays.inputs).isfinite().all())


def test_the_model_learns_a_batch_by_heart() -> None:
    """Shapes, loss and gradients fit together: on one batch, again and again, the loss falls."""
    torch.manual_seed(0)
    arrays = spirals(samples=90)
    batch = torch.from_numpy(arrays.inputs), torch.from_numpy(arrays.targets)
    model = Net((2,), 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    losses = []
    for _ in range(50):
        step = model.train_step(batch)
        for parameter, gradient in zip(model.parameters(), step.gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        losses.append(step.item.loss.item())

    assert losses[-1] < losses[0] / 2
