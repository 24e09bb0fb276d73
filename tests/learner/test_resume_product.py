"""A resumed run equals an uninterrupted one with every recorder, schedule and optimizer."""

from functools import cache
from itertools import product

import pytest
import torch
from long_tests import long
from torch import nn

from stages.learner import LearnerBuilder
from stages.models import ClassificationStep
from stages.optim import (
    AdaGrad,
    Adam,
    AdamW,
    Adan,
    Composed,
    Constant,
    Cosine,
    Exponential,
    Lbfgs,
    Linear,
    Muon,
    Noam,
    RmsProp,
    Scheduler,
    Sequential,
    Sgd,
    Step,
)
from stages.records import encode_state
from stages.records.recorder import RECORDERS
from stages.renderers import NoRenderer

SCHEDULES = {
    "constant": lambda: 1e-2,
    "linear": lambda: Scheduler(1e-2, Linear(final=1e-3, num_iters=6)),
    "cosine": lambda: Scheduler(1e-2, Cosine(num_iters=3)),
    "exponential": lambda: Scheduler(1e-2, Exponential(gamma=0.9)),
    "noam": lambda: Scheduler(1e-2, Noam(warmup_steps=3, model_size=4)),
    "step": lambda: Scheduler(1e-2, Step(step_size=3, per="epoch")),
    "composed": lambda: Scheduler(
        1e-2, Composed(schedulers=(Constant(), Linear(initial=1.0, final=0.1, num_iters=5)))
    ),
    "sequential": lambda: Scheduler(
        1e-2, Sequential(schedulers=(Constant(), Cosine(num_iters=4)), milestones=(3,))
    ),
}
OPTIMIZERS = {
    "adam": lambda model: Adam(),
    "adamw": lambda model: AdamW(),
    "sgd": lambda model: Sgd(momentum=0.9),
    "rmsprop": lambda model: RmsProp(momentum=0.9, centered=True),
    "adagrad": lambda model: AdaGrad(),
    "adan": lambda model: Adan(),
    "muon": lambda model: Muon(),
    "lbfgs": lambda model: Lbfgs(max_iter=2),
    "nadam": lambda model: torch.optim.NAdam(model.parameters()),
}
PAIRS = [
    ((lambda *case: case) if column in (row, (row + 3) % len(SCHEDULES)) else long)(
        recorder, schedule, list(OPTIMIZERS)[(row + column) % len(OPTIMIZERS)]
    )
    for row, recorder in enumerate(RECORDERS)
    for column, schedule in enumerate(SCHEDULES)
]
"""Cells with each recorder and schedule, and so with each schedule and optimizer, and each recorder too.

Each value is in one that is not long, and each recorder and schedule in two.
"""


class Net(ClassificationStep, nn.Linear):
    pass


def train(folder, schedule, optimizer, epochs, recorder=None):
    """Return the weights, the state of the optimizer and the values after *epochs*."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    model = Net(3, 2)
    builder = LearnerBuilder(folder).num_epochs(epochs).devices(["cpu"]).renderer(NoRenderer())
    builder.with_application_logger(None).burn("0.22")  # also without burnpack, so that cosines are equal
    if recorder is not None:
        builder.with_file_checkpointer(RECORDERS[recorder]()).checkpoint("auto")
    learner = builder.build(model, OPTIMIZERS[optimizer](model), SCHEDULES[schedule]())
    assert bool(learner.resumed) is (epochs == 4 and recorder is not None)
    learner.fit([(x[:3], y[:3]), (x[3:], y[3:])], [(x, y)])
    state = encode_state(learner.components.state.model.optimizer.state_dict(), "the optimizer")
    return model.state_dict(), state, list(learner.history)


@cache
def train_straight(schedule, optimizer):
    return train("unused", schedule, optimizer, 4)


def bits_of(node):
    if isinstance(node, torch.Tensor):
        return str(node.dtype), tuple(node.shape), node.contiguous().view(-1).tolist()
    if isinstance(node, dict):
        return {key: bits_of(value) for key, value in node.items()}
    return [bits_of(value) for value in node] if isinstance(node, list | tuple) else repr(node)


@pytest.mark.parametrize(("recorder", "schedule", "optimizer"), PAIRS)
def test_resumed_run_equals_uninterrupted_one(recorder, schedule, optimizer, tmp_path):
    """Two epochs, and a resume to four, have the bits of four epochs."""
    train(tmp_path, schedule, optimizer, 2, recorder)

    resumed = train(tmp_path, schedule, optimizer, 4, recorder)

    assert bits_of(resumed) == bits_of(train_straight(schedule, optimizer))


@pytest.mark.long
@pytest.mark.parametrize("recorder", RECORDERS)
def test_resumed_run_equals_uninterrupted_one_in_all_combinations(recorder, tmp_path):
    for schedule, optimizer in product(SCHEDULES, OPTIMIZERS):
        folder = tmp_path / f"{schedule}-{optimizer}"
        test_resumed_run_equals_uninterrupted_one(recorder, schedule, optimizer, folder)
