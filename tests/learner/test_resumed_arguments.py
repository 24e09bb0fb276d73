"""A resumed run prints the place at which it resumes, and the arguments that the checkpoint replaces."""

import logging

import pytest
import torch
from stop_after import StopAfter
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, OneCycleLR, StepLR

from stages.learner import LearnerBuilder
from stages.models import ClassificationStep
from stages.optim import Adam as AdamConfig
from stages.optim import Exponential, GroupedOptimizer, ParameterGroup, Scheduler
from stages.records import NamedMpkGzFileRecorder

FALLING = Exponential(gamma=0.5)
SCHEDULED = GroupedOptimizer(AdamConfig(), (ParameterGroup(match="bias", schedule=FALLING),))
BATCHES = [(torch.randn(4, 3), torch.arange(4) % 2)] * 2


class Net(ClassificationStep, torch.nn.Linear):
    pass


class Counting(SGD):
    """An optimizer from outside of torch, which counts its steps in its groups."""

    def __init__(self, params, momentum):
        super().__init__(params, lr=0.1, momentum=momentum)
        self.param_groups[0]["k"] = 0

    def step(self, closure=None):
        self.param_groups[0]["k"] += 1
        return super().step(closure)


def train(directory, optimizer, rate, epochs=1, stop_after=0, seed=1):
    torch.manual_seed(0)
    builder = LearnerBuilder(directory).devices(["cpu"]).num_epochs(epochs).seed(seed)
    builder.renderer(StopAfter(builder.interrupter(), stop_after))
    model = Net(3, 2)
    learner = (
        builder.with_file_checkpointer(NamedMpkGzFileRecorder())
        .checkpoint("auto")
        .build(model, *(part(model) if callable(part) else part for part in (optimizer, rate)))
    )
    learner.fit(BATCHES, BATCHES)
    return model


def build_scheduled(decay, steps, kind=CosineAnnealingLR):
    def build(model):
        built[:] = [SGD(model.parameters(), lr=0.1, weight_decay=decay)]
        return built[0]

    built = []
    return build, lambda _: kind(built[0], steps)


def one_cycle(optimizer, steps):
    return OneCycleLR(optimizer, 0.3, total_steps=steps)


def cyclic(optimizer, steps):
    return CyclicLR(optimizer, 0.1, 0.3, step_size_up=steps)


def test_resumed_run_prints_its_position(tmp_path, capsys):
    train(tmp_path, AdamConfig(), 0.1, epochs=1)
    assert "resuming" not in capsys.readouterr().out

    train(tmp_path, AdamConfig(), 0.1, epochs=2)
    assert f"resuming the run in {tmp_path} after epoch 1\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "ignored"),
    [
        (lambda: (AdamConfig(), 0.1), lambda: (AdamConfig(), 0.01), ""),
        (
            lambda: (lambda model: Adam(model.parameters(), lr=0.1, eps=1e-8), 0.1),
            lambda: (lambda model: Adam(model.parameters(), lr=0.1, eps=1e-6), 0.1),
            "eps is 1e-08, not 1e-06",
        ),
        (
            lambda: (lambda model: Adam(model.parameters(), lr=0.1), None),
            lambda: (lambda model: Adam(model.parameters(), lr=0.2), None),
            "lr is 0.1, not 0.2",
        ),
        (
            lambda: (lambda model: Counting(model.parameters(), momentum=0.1), 0.1),
            lambda: (lambda model: Counting(model.parameters(), momentum=0.2), 0.1),
            "momentum is 0.1, not 0.2",
        ),
        (lambda: (SCHEDULED, Scheduler(0.1, FALLING)), lambda: (SCHEDULED, Scheduler(0.1, FALLING)), ""),
        (lambda: build_scheduled(0.0, 9), lambda: build_scheduled(0.0, 9), ""),
        (
            lambda: build_scheduled(0.0, 9),
            lambda: build_scheduled(0.5, 7),
            "weight_decay is 0.0, not 0.5; T_max of CosineAnnealingLR is 9, not 7",
        ),
        (
            lambda: build_scheduled(0.0, 1, StepLR),
            lambda: build_scheduled(0.0, 2, StepLR),
            "step_size of StepLR is 1, not 2",
        ),
        (lambda: build_scheduled(0.0, 9, one_cycle), lambda: build_scheduled(0.0, 9, one_cycle), ""),
        (
            lambda: build_scheduled(0.0, 4, cyclic),
            lambda: build_scheduled(0.5, 4, cyclic),
            "weight_decay is 0.0, not 0.5",
        ),
    ],
)
@pytest.mark.parametrize("stop_after", [0, 1], ids=["after an epoch", "in the first epoch"])
def test_arguments_that_the_checkpoint_replaces_are_reported(
    before, after, ignored, stop_after, tmp_path, caplog
):
    train(tmp_path, *before(), stop_after=stop_after)

    with caplog.at_level(logging.WARNING):
        train(tmp_path, *after(), epochs=2)

    messages = [record.getMessage() for record in caplog.records]
    expected = f"the checkpoint replaces arguments of this run: {ignored}. Start a new run to change them"
    assert messages == ([expected] if ignored else [])


@pytest.mark.parametrize("stop_after", [0, 1], ids=["after an epoch", "in the first epoch"])
def test_other_seed_is_reported(stop_after, tmp_path, caplog):
    train(tmp_path, AdamConfig(), 0.1, stop_after=stop_after)

    train(tmp_path, AdamConfig(), 0.1, epochs=2, seed=2)

    assert "the seed is 2, but the checkpoint was made with 1" in caplog.text
