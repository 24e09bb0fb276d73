"""The learning-rate finder."""

import math

import pytest
import torch

from stages.contracts.errors import BuilderError
from stages.learner import Hook, LearnerBuilder, LearningRateCurve, find_learning_rate
from stages.learner.batches import iterate_on_device
from stages.learner.lr_finder import FirstBatches
from stages.models import ClassificationStep
from stages.optim import NonFinite, Sgd


class Net(ClassificationStep, torch.nn.Linear):
    pass


def measure(directory, batches=7, **options):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(batches, 8, 4, generator=generator)
    torch.manual_seed(0)
    builder = LearnerBuilder(directory).devices(["cpu"]).seed(1)
    return find_learning_rate(
        builder, Net(4, 3), Sgd(), [(each, each.argmax(1) % 3) for each in inputs], **options
    )


def test_rates_grow_by_a_constant_factor_over_several_epochs(tmp_path):
    curve = measure(tmp_path, rates=(1e-6, 1e-3), steps=31)

    assert curve.rates == pytest.approx([1e-6 * 10 ** (step / 10) for step in range(31)])
    assert all(map(math.isfinite, curve.losses))


def test_curve_ends_before_the_loss_diverges(tmp_path):
    curve = measure(tmp_path, rates=(1e-3, 1e30), steps=60)

    assert 5 < len(curve.rates) < 60
    assert max(curve.running_mean) <= 4 * min(curve.running_mean)


@pytest.mark.parametrize("offset", [0.0, -1.0, -3.0])
def test_curve_of_negative_losses_ends_where_they_diverge(offset):
    """A loss below 0, such as a negative log density, has the suggestion of one above 0."""
    rates = tuple(10.0 ** (step / 10 - 6) for step in range(60))
    falling = (2 / (1 + (rate / 1e-3) ** 2) + (rate / 0.03) ** 4 for rate in rates)

    curve = LearningRateCurve(rates, tuple(loss + offset for loss in falling)).until_divergence()

    assert 40 < len(curve.rates) < 60
    assert 1e-3 <= curve.suggestion <= 4e-3


def test_first_loss_is_that_of_the_initial_weights(tmp_path):
    curve = measure(tmp_path, steps=10)

    torch.manual_seed(0)
    inputs = torch.randn(7, 8, 4, generator=torch.Generator().manual_seed(0))[0]
    expected = torch.nn.functional.cross_entropy(Net(4, 3)(inputs), inputs.argmax(1) % 3)
    assert curve.losses[0] == pytest.approx(expected.item())


def test_suggestion_is_the_rate_of_the_steepest_descent():
    rates = tuple(10.0 ** (step / 10 - 6) for step in range(60))
    losses = tuple(1 / (1 + (rate / 1e-3) ** 2) for rate in rates)

    found = LearningRateCurve(rates, losses).suggestion

    assert 1e-3 <= found <= 4e-3, "the mean of the losses is late by a few steps"


def test_loss_that_only_grows_has_no_suggestion():
    assert LearningRateCurve(tuple(range(1, 40)), tuple(range(1, 40))).suggestion is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": (1e-2, 1e-3)}, "must be above 0 and grow; found 0.01 to 0.001"),
        ({"rates": (0.0, 1e-3)}, "must be above 0 and grow; found 0 to 0.001"),
        ({"steps": 9}, "steps must be at least 10; found 9"),
    ],
)
def test_wrong_options_are_refused(options, message, tmp_path):
    with pytest.raises(BuilderError, match=message):
        measure(tmp_path, **options)


def test_batches_of_a_loader_that_does_not_move_them_are_moved_to_the_device():
    batches = FirstBatches([torch.ones(2)], steps=2)

    moved = iterate_on_device(batches, torch.device("meta"))

    assert [batch.device.type for batch in moved] == ["meta", "meta"]


def test_builder_keeps_its_options(tmp_path):
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).num_epochs(3)
    batches = [(torch.randn(8, 4), torch.arange(8) % 3)] * 10

    find_learning_rate(builder, Net(4, 3), Sgd(), batches, steps=10)
    learner = builder.build(Net(4, 3), Sgd(), 0.1)
    learner.fit(batches, batches)

    assert learner.epoch == 3


class Rates(Hook):
    """The learning rate of the optimizer after each batch."""

    def __init__(self):
        self.rates = []

    def after_step(self, context):
        self.rates.append(context.optimizer.param_groups[0]["lr"])


OPTIONS = {
    "a limit of batches": lambda builder: builder.limit_batches(2, 1),
    "skipped batches": lambda builder: builder.non_finite(NonFinite(kind="skip")),
    "windows of Burn 0.22": lambda builder: builder.burn("0.22").grads_accumulation(2),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_loss_has_the_rate_of_its_step(name, tmp_path):
    batches = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(20)]
    if name == "skipped batches":
        batches[4][0].fill_(math.nan)
    hook = Rates()

    builder = OPTIONS[name](LearnerBuilder(tmp_path).devices(["cpu"]).hooks(hook))
    curve = find_learning_rate(builder, Net(4, 3), Sgd(), batches, rates=(1e-3, 1e-1), steps=20)

    every = [1e-3 * 100 ** (step / 19) for step in range(20)]
    measured = [rate for step, rate in enumerate(every) if step != 4 or name != "skipped batches"]
    assert curve.rates == pytest.approx(measured)
    assert hook.rates[-1] == pytest.approx(curve.rates[-1])


def test_batch_that_counts_nothing_does_not_end_the_curve(tmp_path):
    batches = [(torch.randn(8, 4), torch.arange(8) % 3)] * 5
    batches[2] = (batches[2][0], torch.full((8,), -100))

    curve = find_learning_rate(LearnerBuilder(tmp_path).devices(["cpu"]), Net(4, 3), Sgd(), batches, steps=20)

    assert len(curve.losses) == 20
    assert curve.losses[2] == curve.losses[1]
