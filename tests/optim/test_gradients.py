"""Gradients of several batches as one."""

import torch

from stages.optim import Window


def test_a_window_is_the_mean_over_its_samples():
    window = Window(2)
    window.add([torch.tensor([1.0]), None], 3)
    assert not window.full
    window.add([torch.tensor([5.0]), None], 1)
    assert window.full

    total, missing = window.take()

    assert total.item() == (3 * 1.0 + 1 * 5.0) / 4
    assert missing is None
    assert window.batches == 0


def test_a_gradient_that_comes_later_counts_as_zero_before():
    window = Window(2)
    window.add([None], 1)
    window.add([torch.tensor([4.0])], 3)

    assert window.take()[0].item() == 3.0


def test_a_window_of_one_hands_the_gradients_on_untouched():
    gradient = torch.tensor([0.1])
    window = Window(1)
    window.add([gradient], 7)

    assert window.take()[0] is gradient
