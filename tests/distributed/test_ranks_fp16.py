"""Several ranks train in fp16 with one scale of the loss, and an overflow on any rank counts for all."""

import os

import pytest
import torch
from long_tests import cases, long
from ranks import run_ranks
from run_files import read_run_files
from torch import nn

from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.distributed.rank_group import ProcessRankGroup
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, NonFinite
from stages.optim.mixed_precision import INITIAL_SCALE
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer

TOLERANCE = 5e-4
"""A number of fp16 has 11 bits, so a rounding changes it by up to a part in 2,000, and the gradients of a
share are rounded in other places than those of the batch. An update of Adam has about the size of the rate,
0.01, and the relative error of its gradient: 10 updates differ by about 10 × 0.01 / 2,000 = 5e-5."""


class Net(ClassificationStep, nn.Sequential):
    """Has gradients that overflow in fp16 in the steps *overflowing* of the rank *bad_rank*; asks to stop."""

    overflowing, bad_rank = (), 0
    interrupter, stop_at, steps = None, 0, 0

    def __init__(self):
        torch.manual_seed(3)
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def train_step(self, batch):
        self.steps += 1
        if self.steps == self.stop_at:
            self.interrupter.stop()
        return super().train_step(batch)

    def loss(self, logits, targets):
        loss = super().loss(logits, targets)
        is_bad = self.training and self.steps in self.overflowing and get_rank() == self.bad_rank
        return loss * 1e37 if is_bad else loss


def get_rank():
    return int(os.environ.get("RANK", "0"))


def loaders(train=77):
    inputs = torch.randn(train, 4, generator=torch.Generator().manual_seed(1))
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(16)
    split = TensorDataset(inputs, inputs[:, :3].argmax(1))
    return builder.shuffle(5).build(split), builder.build(split)


def train_model(directory, model=None, *, epochs=2, train=77, change=lambda builder: builder):
    builder = LearnerBuilder(directory).num_epochs(epochs).seed(1).devices(["cpu"]).num_threads(1)
    builder.precision("fp16").metrics(LossMetric(), AccuracyMetric()).renderer(PlainRenderer())
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto")
    model = model or Net()
    model.interrupter = builder.interrupter()
    learner = change(builder).build(model, Adam(), 0.01)
    learner.fit(*loaders(train))
    return learner


def fit(directory, model=None, **options):
    """Return the scale, the losses, and the weights as plain values."""
    learner = train_model(directory, model, **options)
    scale = learner._state.precision.scaler.state_dict()
    losses = [learner.history.value(epoch, "valid", "Loss") for epoch in range(1, learner.epoch + 1)]
    return scale, losses, [parameter.tolist() for parameter in learner.model.parameters()]


def assert_is_close(found, expected):
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], rel=TOLERANCE)
    for a, b in zip(found[2], expected[2], strict=True):
        assert torch.allclose(torch.tensor(a), torch.tensor(b), atol=TOLERANCE)


CHANGES = {
    "plain": lambda builder: builder,
    "skip": lambda builder: builder.non_finite(NonFinite(kind="skip")),
    "window of 2": lambda builder: builder.grads_accumulation(2),
    "summed window": lambda builder: builder.grads_accumulation(2, reduction="sum"),
}


def fit_with_overflows(directory, overflowing, bad_rank, change="plain", train=77):
    model = Net()
    model.overflowing, model.bad_rank = overflowing, bad_rank
    return fit(directory, model, train=train, change=CHANGES[change])


SHORT = cases({change: [change] for change in CHANGES}, ["skip", "summed window"])


@pytest.mark.parametrize("change", SHORT)
def test_ranks_in_fp16_train_what_one_process_trains(change, tmp_path):
    one = fit_with_overflows(tmp_path / "one", (), 0, change)

    found = run_ranks(fit_with_overflows, 2, tmp_path / "ranks", (), 0, change)

    assert found[0] == found[1]
    assert found[0][0] == {"scale": INITIAL_SCALE, "growth": 10}
    assert_is_close(found[0], one)


@pytest.mark.parametrize("change", SHORT)
@pytest.mark.parametrize("bad_rank", [long(0), 1])
def test_overflow_on_one_rank_leaves_out_the_batch_on_all(bad_rank, change, tmp_path):
    one = fit_with_overflows(tmp_path / "one", (2, 3), 0, change)

    found = run_ranks(fit_with_overflows, 2, tmp_path / "ranks", (2, 3), bad_rank, change)

    assert found[0] == found[1]
    assert found[0][0] == {"scale": INITIAL_SCALE / 4, "growth": 7}
    assert_is_close((found[0][0], [], found[0][2]), (one[0], [], one[2]))


def test_ranks_without_a_sample_share_the_scale_of_the_others(tmp_path):
    found = run_ranks(
        fit_with_overflows, 4, tmp_path, (2,), 0, "plain", 17
    )  # the second batch has one sample

    assert found.count(found[0]) == 4
    assert found[0][0] == {"scale": INITIAL_SCALE / 2, "growth": 2}


def count_exchanged_numbers(directory, precision):
    """Return the number of sums of a single number over the ranks in one epoch."""
    sizes = []
    add = ProcessRankGroup.sum

    def count(group, tensor):
        sizes.append(tensor.numel())
        add(group, tensor)

    ProcessRankGroup.sum = count
    train_model(directory, epochs=1, change=lambda builder: builder.precision(precision))
    return sizes.count(1)


def test_overflows_cost_one_sum_of_one_number_per_step(tmp_path):
    f32 = run_ranks(count_exchanged_numbers, 2, tmp_path / "f32", "f32")
    fp16 = run_ranks(count_exchanged_numbers, 2, tmp_path / "fp16", "fp16")

    assert [found - expected for found, expected in zip(fp16, f32, strict=True)] == [5, 5]


def fit_and_stop(directory, stop, bad_rank=1):
    """Train 3 epochs, with a stop after the step *stop*, if any."""
    model = Net()
    model.overflowing, model.bad_rank = (2, 3), bad_rank
    model.stop_at = stop
    fit(directory, model, epochs=3, train=160)


def resume(directory):
    return fit(directory, epochs=3, train=160)


@pytest.mark.parametrize("stop", [long(4), 12])
def test_scale_after_overflows_is_resumed(stop, tmp_path):
    run_ranks(fit_and_stop, 2, tmp_path / "uninterrupted", None)
    for directory in (tmp_path / "two", tmp_path / "one"):
        run_ranks(fit_and_stop, 2, directory, stop)

    two, one = run_ranks(resume, 2, tmp_path / "two"), resume(tmp_path / "one")

    assert two[0][0] == two[1][0] == one[0] == {"scale": INITIAL_SCALE / 4, "growth": 27}
    assert_is_close(one, two[0])
    assert read_run_files(tmp_path / "two") == read_run_files(tmp_path / "uninterrupted")
