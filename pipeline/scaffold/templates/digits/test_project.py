"""Quick tests of the model and the data, to run before a long training."""

import torch

from model import DigitNet
from stages.data.sources import digits
from stages.learner import overfit


def test_model_returns_a_logit_for_each_class_of_images_of_any_size() -> None:
    """The sizes of the linear layers come from the shape of the images."""
    for shape in ((1, 8, 8), (3, 28, 20)):
        logits = DigitNet(shape, num_classes=10)(torch.rand(4, *shape))

        assert logits.shape == (4, 10)


def test_model_overfits_one_batch() -> None:
    """Twenty steps on one batch halve the loss."""
    torch.manual_seed(0)
    arrays = digits()
    batch = torch.from_numpy(arrays.inputs[:64]).float() / 16, torch.from_numpy(arrays.targets[:64])
    model = DigitNet((1, 8, 8), num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)

    losses = overfit(model, optimizer, batch, steps=20)

    assert losses[-1] < losses[0] / 2
