"""Quick tests of the model and the data, to run before a long training."""

import numpy as np
import torch

from model import PixelNet
from source import CLASSES, shapes
from stages.learner import overfit


def test_masks_mark_the_pixels_of_one_color() -> None:
    """Whatever covers it, the rest of a circle or a square has one color."""
    arrays = shapes(samples=20)

    for image, mask in zip(arrays.inputs, arrays.targets, strict=True):
        for kind in range(1, len(CLASSES)):
            assert len(np.unique(image[:, mask == kind], axis=1).T) <= 1


def test_model_takes_images_of_any_size() -> None:
    """A logit for each class and pixel, whatever the height and the width."""
    model = PixelNet((3, 32, 32), num_classes=len(CLASSES))

    for height, width in ((32, 32), (4, 30)):
        assert model(torch.rand(2, 3, height, width)).shape == (2, len(CLASSES), height, width)


def test_model_overfits_one_batch() -> None:
    """Fifty steps on one batch halve the loss."""
    torch.manual_seed(0)
    arrays = shapes(samples=4)
    batch = torch.from_numpy(arrays.inputs / np.float32(255)), torch.from_numpy(arrays.targets).long()
    model = PixelNet((3, 32, 32), num_classes=len(CLASSES))

    losses = overfit(model, torch.optim.Adam(model.parameters(), lr=0.01), batch, steps=50)

    assert losses[-1] < losses[0] / 2
