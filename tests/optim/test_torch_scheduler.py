"""Torch's learning rate schedulers in the training loop."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.history import Split
from stages.optim import Cosine, Scheduler, Stepper, TorchScheduler, as_scheduler
from stages.records import decode_state, encode_state

SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.1),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [2, 7], 0.5),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=40),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 4, cycle_momentum=False),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda n: 0.9**n, lambda n: 0.5**n]),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.MultiStepLR(o, [2, 5], 0.5)], [4]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def optimizer():
    weights = [torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))]
    return torch.optim.SGD(
        [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5}], lr=0.1, momentum=0.9
    )


class Run:
    """A run of epochs of three batches that makes the calls of the loop."""

    def __init__(self, build, per):
        self.optimizer = optimizer()
        self.scheduler = TorchScheduler(build(self.optimizer), per)
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        self.stepper = Stepper(parameters, self.optimizer)

    def epochs(self, losses):
        """Return the rates of the groups at each batch, and the warnings of the scheduler."""
        rates = []
        for loss in losses:
            for _ in range(3):
                said = self.scheduler.step()
                self.stepper.step([torch.ones(1), torch.ones(1)], None)
                rates.append([said, *(group["lr"] for group in self.optimizer.param_groups)])
            self.scheduler.end_epoch(loss)
        return rates


def through_json(scheduler):
    return decode_state(json.loads(json.dumps(encode_state(scheduler.state_dict(), "the state"))))


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("per", ["batch", "epoch"])
def test_rates_equal_those_of_a_plain_torch_loop(kind, per):
    reference = optimizer()
    scheduler, expected = SCHEDULERS[kind](reference), []
    for _ in range(4):
        for _ in range(3):
            reference.step()
            expected.append([group["lr"] for group in reference.param_groups])
            if per == "batch":
                scheduler.step()
        if per == "epoch":
            scheduler.step()

    rates = Run(SCHEDULERS[kind], per).epochs([1.0] * 4)

    assert [each[1:] for each in rates] == expected
    assert all(said == first for said, first, _ in rates)


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("per", ["batch", "epoch"])
def test_scheduler_resumes_from_plain_data(kind, per):
    unbroken, resumed = Run(SCHEDULERS[kind], per), Run(SCHEDULERS[kind], per)
    unbroken.epochs([1.0, 1.0])
    saved = through_json(unbroken.scheduler)

    resumed.optimizer.load_state_dict(copy.deepcopy(unbroken.optimizer.state_dict()))
    resumed.scheduler.load_state_dict(saved)

    assert resumed.epochs([1.0, 1.0]) == unbroken.epochs([1.0, 1.0])


def plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=1)


def test_reduce_on_plateau_follows_the_validation_loss_of_each_epoch():
    rates = Run(plateau, "batch").epochs([1.0, 0.9, 0.9, 0.9, 0.9])

    assert [first for first, _, _ in rates[::3]] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.01])


def test_reduce_on_plateau_resumes_with_its_best_value():
    unbroken, resumed = Run(plateau, "epoch"), Run(plateau, "epoch")
    unbroken.epochs([0.5, 0.9])
    resumed.optimizer.load_state_dict(unbroken.optimizer.state_dict())
    resumed.scheduler.load_state_dict(through_json(unbroken.scheduler))

    assert resumed.epochs([0.9, 0.8, 0.7]) == unbroken.epochs([0.9, 0.8, 0.7])


def test_reduce_on_plateau_without_a_loss_names_the_missing_metric():
    with pytest.raises(BuilderError, match="Register a Loss metric for the valid split"):
        Run(plateau, "epoch").epochs([None])


def test_no_warning_if_batches_are_only_accumulated():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = TorchScheduler(lr_scheduler.StepLR(optimizer(), 1))

        assert [scheduler.step() for _ in range(3)] == pytest.approx([0.1, 0.01, 0.001])


def test_state_of_a_built_in_scheduler_is_rejected():
    with pytest.raises(CheckpointError, match="another kind of scheduler"):
        TorchScheduler(plateau(optimizer())).load_state_dict(Scheduler(0.1).state_dict())


def test_numbers_schedulers_and_none_become_schedulers():
    one, ours = optimizer(), Scheduler(0.3, Cosine(num_iters=3))
    torchs = lr_scheduler.StepLR(one, 3)
    by_epoch = TorchScheduler(torchs, "epoch")

    assert as_scheduler(one, None).step() == 0.1
    assert as_scheduler(one, 0.7).step() == 0.7
    assert as_scheduler(one, 1).step() == 1.0
    assert as_scheduler(one, ours) is ours
    assert as_scheduler(one, by_epoch) is by_epoch
    assert as_scheduler(one, torchs).drives_groups
    assert as_scheduler(one, torchs).per == "batch"
    with pytest.raises(BuilderError, match="StepLR belongs to a different optimizer"):
        as_scheduler(optimizer(), torchs)


def test_scheduler_names_the_values_that_it_needs():
    assert TorchScheduler(plateau(optimizer())).needs == {(Split.VALID, "Loss")}
    assert TorchScheduler(lr_scheduler.StepLR(optimizer(), 3), "epoch").needs == set()


@pytest.mark.parametrize("rate", [np.float32(0.1), np.float64(0.1), np.int64(1)])
def test_any_real_number_is_a_learning_rate(rate):
    assert as_scheduler(optimizer(), rate).step() == float(rate)


@pytest.mark.parametrize("what", ["0.1", [0.1], 1j, object()])
def test_object_without_a_rate_is_rejected(what):
    with pytest.raises(BuilderError, match="Pass a number, a scheduler"):
        as_scheduler(optimizer(), what)


def test_rate_of_the_optimizer_can_be_changed_between_steps():
    ours = optimizer()
    scheduler = as_scheduler(ours, None)
    assert scheduler.step() == 0.1

    ours.param_groups[0]["lr"] = 0.03

    assert scheduler.step() == 0.03
    assert scheduler.drives_groups
    scheduler.load_state_dict(scheduler.state_dict())


@pytest.mark.parametrize(
    ("build", "per", "message"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=2), "batch", "OneCycleLR cannot make another"),
        (
            lambda o: lr_scheduler.StepLR(o, "ten"),
            "epoch",
            "StepLR cannot make another step per epoch: uns",
        ),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience="ten"), "epoch", "Plateau cannot make another"),
    ],
)
def test_step_that_torch_cannot_make_is_one_error(build, per, message):
    scheduler = TorchScheduler(build(optimizer()), per)

    with pytest.raises(BuilderError, match=message):
        for _ in range(4):
            scheduler.step()
            scheduler.end_epoch(1.0)
