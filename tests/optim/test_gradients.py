"""Accumulation of the gradients of several batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts.errors import CheckpointError
from stages.optim import Totals, Window


def filled(window, *batches):
    """*window* after batches of (gradient, samples)."""
    for gradient, samples in batches:
        window.add([None if gradient is None else torch.tensor([gradient])], samples)
    return window


def test_window_returns_the_mean_over_its_samples():
    window = Window(2)
    window.add([torch.tensor([1.0]), None], 3)
    assert not window.full
    window.add([torch.tensor([5.0]), None], 1)
    assert window.full

    total, missing = window.take()

    assert total.item() == (3 * 1.0 + 1 * 5.0) / 4
    assert missing is None
    assert window.batches == 0


def test_window_can_return_burns_sum_of_means():
    assert filled(Window(2, reduction="sum"), (1.0, 3), (5.0, 1)).take()[0].item() == 6.0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_missing_in_earlier_batches_counts_as_zero(reduction):
    window = filled(Window(2, reduction=reduction), (None, 1), (4.0, 3))

    assert window.take()[0].item() == {"mean": 3.0, "sum": 4.0}[reduction]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_window_of_one_batch_returns_the_gradients_unchanged(reduction):
    gradient = torch.tensor([0.1])
    window = Window(1, reduction=reduction)
    window.add([gradient], 7)

    assert window.take()[0] is gradient


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_window_does_not_modify_its_input(reduction):
    gradients = [torch.tensor([1.0]), torch.tensor([2.0])]
    window = Window(2, reduction=reduction)
    for gradient in gradients:
        window.add([gradient], 3)
    window.take()

    assert gradients == [torch.tensor([1.0]), torch.tensor([2.0])]


@pytest.mark.parametrize(
    ("leftover", "reduction", "applied", "stays"),
    [
        ("flush", "mean", (3 * 1.0 + 5.0) / 4, 0),
        ("flush", "sum", 6.0, 0),
        ("drop", "mean", None, 0),
        ("carry", "mean", None, 2),
    ],
)
def test_partial_window_at_the_end_of_an_epoch_follows_the_leftover_rule(leftover, reduction, applied, stays):
    window = filled(Window(3, reduction=reduction, leftover=leftover), (1.0, 3), (5.0, 1))

    left = window.end_epoch()

    assert (left and left[0].item()) == applied
    assert window.batches == stays


def test_no_gradients_remain_if_an_epoch_ends_with_a_full_window():
    window = filled(Window(2), (1.0, 3), (5.0, 1))
    window.take()

    assert window.end_epoch() is None


def test_carried_window_is_completed_in_the_next_epoch():
    window = filled(Window(3, leftover="carry"), (1.0, 1), (2.0, 1))
    window.end_epoch()

    assert filled(window, (6.0, 1)).take()[0].item() == 3.0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_window_resumes_from_its_state(reduction):
    window, resumed = (Window(3, reduction=reduction) for _ in "ab")
    for gradients in ([torch.tensor([1.0]), None, torch.tensor([2.0])], [torch.tensor([3.0]), None, None]):
        window.add(gradients, 5)

    resumed.load_state_dict(window.state_dict())
    for each in (window, resumed):
        each.add([None, torch.tensor([7.0]), None], 2)

    assert resumed.full
    assert resumed.take() == window.take()


def test_empty_window_has_a_state():
    window = filled(Window(2), (1.0, 1))
    window.load_state_dict(Window(2).state_dict())

    assert window.batches == 0
    assert window.end_epoch() is None
    with pytest.raises(CheckpointError, match="batches, samples, parameters, sums, halves"):
        window.load_state_dict({"batches": 1})


@settings(deadline=None)  # the first call of torch takes long
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_batches_of_any_sizes_equal_one_large_batch(sizes, seed):
    inputs = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def gradients(batch):
        return torch.autograd.grad(((batch @ weight) ** 2).mean(), [weight])

    window = Window(len(sizes))
    for batch in inputs.split(sizes):
        window.add(gradients(batch), len(batch))

    torch.testing.assert_close(window.take()[0], gradients(inputs)[0])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_summed_in_float32(dtype, reduction):
    window = Window(3, reduction=reduction)
    for value in (40000.0, 40000.0, -60000.0):
        window.add([torch.tensor([value], dtype=dtype)], 256)
        resumed = Window(3, reduction=reduction)
        resumed.load_state_dict(window.state_dict())

    for each in (window, resumed):
        total = each.take()[0]
        exact = 20000.0 / (3 if reduction == "mean" else 1)
        assert total.dtype == dtype
        assert total.item() == pytest.approx(exact, rel=1e-2)


def test_window_without_samples_makes_no_update():
    full, flushed = Window(2), Window(2)
    for window, batches in ((full, 2), (flushed, 1)):
        for _ in range(batches):
            window.add([torch.tensor([0.0]), None], 0)

    assert full.take() is None
    assert flushed.end_epoch() is None
    assert (full.batches, flushed.batches) == (0, 0)


def test_sum_over_batches_leaves_out_those_of_weight_0():
    full, empty = Window(2, reduction="sum"), Window(2, reduction="sum")

    assert filled(full, (float("nan"), 0), (5.0, 0.5)).take()[0].item() == 5.0
    assert filled(empty, (1.0, 0)).end_epoch() is None


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weights_on_the_device_combine_as_those_on_the_host(reduction):
    batches = [(2.0, 3.5), (float("nan"), 0.0), (5.0, 1.0)]
    on_host, on_device = Window(3, reduction=reduction), Window(3, reduction=reduction)
    for gradient, weight in batches:
        on_host.add([torch.tensor([gradient])], weight)
        on_device.add([torch.tensor([gradient])], torch.tensor(weight))

    assert on_device.take()[0].item() == pytest.approx(on_host.take()[0].item())
    assert on_device.taken_weight.item() == 4.5


def test_totals_on_the_device_combine_weights_as_a_window_does():
    gradients, weights = [torch.tensor([2.0]), torch.tensor([5.0])], [torch.tensor(3.5), torch.tensor(0.0)]
    window, totals = Window(2), Totals([gradients[0]], weights[0])

    for gradient, weight in zip(gradients, weights, strict=True):
        assert window.holds(totals)
        window.add_on_device(totals, [gradient], weight)
        window.count(totals)

    assert totals.weight.item() == 3.5
    assert window.take_on_device(totals)[0].item() == 2.0
