"""Hooks and what steps log, together, on several ranks, after a resume and with accumulation windows."""

import os
from functools import partial

import pytest
import torch
from long_tests import covering_cases
from rank_runs import MAX_GAP, Net, assert_equals_one_process, build_net, loaders, outcome, start
from ranks import run_ranks
from run_files import read_run_files
from stop_after import StopAfter

from stages.distributed import rank_group
from stages.learner import FrozenNorms, Unfreeze
from stages.optim import Adam

TRAIN_BATCHES, VALID_BATCHES = 5, 2


class LoggingNet(Net):
    """Logs a mean, samples, and a number whose name and value a hook decides."""

    scale = 1.0

    def forward_classification(self, batch):
        inputs, targets = batch
        self.log("mean", inputs.mean(), weight=inputs.numel())
        self.log(f"scale after {int(self.scale < 0.99)}", self.scale)
        self.log_image("inputs", inputs[:2].reshape(-1, 1, 2, 2).sigmoid())
        self.log_text("targets", f"{self.training} {targets.tolist()}")
        return super().forward_classification(batch)


class ShrinkWeights:
    """Scales the weights by a factor of the number of its calls, which the model logs."""

    def __init__(self):
        self.calls = 0

    def before_fit(self, context):
        context.model.scale = 1 - 0.001 * self.calls  # no checkpoint has it

    def after_step(self, context):
        self.calls += 1
        self.before_fit(context)
        with torch.no_grad():
            for parameter in context.model.parameters():
                parameter.mul_(context.model.scale)

    def before_validation(self, context):
        self.calls += context.step == 0
        self.before_fit(context)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state_dict):
        self.calls = state_dict["calls"]


HOOKS = {
    "no hook": list,
    "state": lambda: [ShrinkWeights()],
    "built in": lambda: [Unfreeze(r"^[01]\.", epoch=2), FrozenNorms()],
}
WINDOWS = {
    "no window": lambda builder: builder,
    "flushed": lambda builder: builder.grads_accumulation(3),
    "carried": lambda builder: builder.grads_accumulation(3, leftover="carry"),
}
STOPS = {
    "in training": 2,
    "before validation": TRAIN_BATCHES,
    "in validation": TRAIN_BATCHES + 1,
    "after an epoch": TRAIN_BATCHES + VALID_BATCHES,
}


def fit(directory, hooks, window, *, norm=True, stop_after=None):
    """Train three epochs from the newest checkpoint; return whether the run stopped, and its outcome."""
    if "RANK" in os.environ:  # and not the process of the tests
        rank_group.MAX_GAP = MAX_GAP
    builder = WINDOWS[window](start(directory, 3)).checkpoint("auto").hooks(*HOOKS[hooks]())
    if stop_after:
        builder.renderer(StopAfter(builder.interrupter(), stop_after))
    learner = builder.build(LoggingNet(*build_net(norm=norm)), Adam(), 0.05)
    learner.fit(*loaders())
    return learner.interrupted is not None, outcome(learner)


def run(ranks, *arguments, **options):
    """Return what `fit` returns, on rank 0 if there are several."""
    call = partial(fit, *arguments, **options)
    return call() if ranks == 1 else run_ranks(call, ranks)[0]


@pytest.mark.parametrize(
    ("ranks", "hooks", "window", "stop_after"),
    covering_cases([1, 2], list(HOOKS), list(WINDOWS), STOPS, strength=1),
)
def test_stopped_run_equals_an_uninterrupted_one(ranks, hooks, window, stop_after, tmp_path):
    run(ranks, tmp_path / "a", hooks, window)

    was_stopped, _ = run(ranks, tmp_path / "b", hooks, window, stop_after=stop_after)
    run(ranks, tmp_path / "b", hooks, window)

    assert was_stopped
    assert read_run_files(tmp_path / "b") == read_run_files(tmp_path / "a")


@pytest.mark.parametrize(("hooks", "window"), covering_cases(list(HOOKS), list(WINDOWS), strength=1))
def test_two_ranks_log_and_train_what_one_process_does(hooks, window, tmp_path):
    _, one = run(1, tmp_path / "one", hooks, window, norm=False)

    _, both = run(2, tmp_path / "two", hooks, window, norm=False)

    assert_equals_one_process(both, one)
    assert "valid mean" in both[0]
    assert ("train scale after 1" in both[0]) == (hooks == "state")
