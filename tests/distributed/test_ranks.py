"""Several ranks train what one process trains, and a run of ranks resumes exactly."""

import math
import os
import signal
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from long_tests import cases, long
from rank_runs import (
    CHANGES,
    SIZES,
    STOP_AT,
    TOLERANCE,
    Net,
    assert_equals_one_process,
    build_net,
    fit,
    fit_in_parts,
    loaders,
    outcome,
    resume,
    start,
    stop_within_epoch,
)
from ranks import run_ranks
from run_files import read_run_files
from torch import nn

from stages.contracts.errors import BuilderError, StageError
from stages.contracts.outputs import ClassificationOutput
from stages.contracts.placement import share_of
from stages.distributed import join_group
from stages.learner import LearnerBuilder
from stages.metrics import (
    LossMetric,
)
from stages.models import ClassificationStep
from stages.optim import Adam, Lbfgs, NonFinite, Sgd
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer

PADDING = -100
LONG = (
    "plain",
    "window of 3",
    "dropped window",
    "carried window",  # on four ranks below
    "summed and carried window",  # test_carried_window_is_resumed_between_epochs
    "a metric of torchmetrics",
    "torch's loader",
)
"""Changes of which another has the parts; the first import of torchmetrics takes three seconds."""


def read_logs(directory):
    """Return the lines of all metric logs as numbers."""
    return {
        str(path.relative_to(directory)): [
            [*map(float, line.replace("final", "0").split(","))] for line in path.open()
        ]
        for path in sorted(directory.glob("*/epoch-*/*.log"))
        if "telemetry" not in str(path)
    }


@pytest.mark.parametrize(
    ("change", "size"),
    [long(change, 2) if change in LONG else (change, 2) for change in CHANGES]
    + [(change, 4) if change == "carried window" else long(change, 4) for change in CHANGES],
)
def test_ranks_train_what_one_process_trains(change, size, tmp_path):
    one = fit(tmp_path / "one", change)

    found = run_ranks(fit, size, tmp_path / "ranks", change)

    assert found.count(found[0]) == size, "the ranks differ"
    assert_equals_one_process(found[0], one)
    logs, expected = read_logs(tmp_path / "ranks"), read_logs(tmp_path / "one")
    assert logs.keys() == expected.keys()
    for name, lines in expected.items():
        assert [*chain(*logs[name])] == pytest.approx(
            [*chain(*lines)], rel=TOLERANCE, abs=TOLERANCE, nan_ok=True
        )


@pytest.mark.parametrize("sizes", cases({name: [sizes] for name, sizes in SIZES.items()}, ["batches of one"]))
def test_ranks_without_a_sample_of_a_batch_take_part(sizes, tmp_path):
    one = fit(tmp_path / "one", "plain", sizes)

    found = run_ranks(fit, 4, tmp_path / "ranks", "plain", sizes)

    assert found.count(found[0]) == 4
    assert_equals_one_process(found[0], one)


def fit_from_other_weights(directory):
    """Train a model whose weights differ on each rank before, and are not contiguous."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = Net(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1), nn.Flatten())
    model = model.to(memory_format=torch.channels_last)
    learner = start(directory).build(model, Adam(), 0.05)
    learner.fit(*loaders())
    return outcome(learner)


def test_ranks_start_with_the_weights_of_rank_0(tmp_path):
    found = run_ranks(fit_from_other_weights, 2, tmp_path)

    assert found[0] == found[1]


class UpdatingItself(Net):
    """Changes its weights in a training step, as an optimizer of its own would."""

    def train_step(self, batch):
        with torch.no_grad():
            self[0].weight.add_(batch[0].mean())
        return super().train_step(batch)


def fit_a_model_that_updates_itself(directory):
    try:
        start(directory).build(UpdatingItself(*build_net()), Adam(), 0.05).fit(*loaders())
    except BuilderError as error:
        return str(error)
    return ""


def test_weights_that_differ_between_the_ranks_are_reported(tmp_path):
    found = run_ranks(fit_a_model_that_updates_itself, 2, tmp_path)

    assert all("epoch 1: the ranks have different weights of UpdatingItself" in each for each in found)
    assert not list(tmp_path.glob("checkpoint/trainer-*"))


def test_checkpoints_have_no_trace_of_the_ranks(tmp_path):
    fit(tmp_path / "one")

    run_ranks(fit, 2, tmp_path / "ranks")

    names = [
        sorted(path.name for path in (tmp_path / each / "checkpoint").iterdir()) for each in ("one", "ranks")
    ]
    assert names[0] == names[1]
    trees = [
        NamedMpkGzFileRecorder().load(tmp_path / each / "checkpoint/model-2") for each in ("one", "ranks")
    ]
    assert describe(trees[0]) == describe(trees[1])


def describe(tree):
    """Return *tree* with the shape of each tensor in its place."""
    if isinstance(tree, torch.Tensor):
        return tuple(tree.shape), str(tree.dtype)
    if isinstance(tree, dict):
        return {key: describe(value) for key, value in tree.items()}
    return [*map(describe, tree)] if isinstance(tree, list) else tree


@pytest.mark.parametrize(
    ("stop", "window"),
    [
        ((0, 4), 1),
        ((1, STOP_AT), 3),
        *(long(stop, window) for stop, window in [((0, 4), 3), ((1, 4), 1), ((1, 4), 3), ((1, STOP_AT), 1)]),
    ],
    ids=str,
)
def test_run_of_ranks_that_any_rank_stops_resumes_to_the_same_bytes(stop, window, tmp_path):
    run_ranks(fit_in_parts, 2, tmp_path / "uninterrupted", (), 0.3, window)

    found = run_ranks(fit_in_parts, 2, tmp_path / "interrupted", (stop,), 0.3, window)

    [(first, (resumed, _)), _] = found[0]
    assert first == (None, True)
    assert resumed is not None
    assert found[0][0] == found[1][0]
    assert read_run_files(tmp_path / "interrupted") == read_run_files(tmp_path / "uninterrupted")


@pytest.mark.parametrize("size", [1, long(4)])
def test_run_that_was_saved_on_two_ranks_resumes_on_others(size, tmp_path):
    uninterrupted = fit_in_parts(tmp_path / "one", (), 0.0)

    run_ranks(stop_within_epoch, 2, tmp_path / "ranks")
    found = run_ranks(resume, size, tmp_path / "ranks")

    assert found[0][0].startswith("in epoch")
    assert_equals_one_process(found[0][1], uninterrupted[1])


class TokenNet(ClassificationStep, nn.Module):
    """A classifier of tokens, whose loss is the mean over those that are not padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.head = nn.Embedding(7, 6), nn.Linear(6, 5)

    def forward_classification(self, batch):
        tokens, targets = batch
        logits = self.head(self.embedding(tokens)).transpose(1, 2)
        loss = F.cross_entropy(logits, targets)
        return ClassificationOutput(loss, logits, targets, weight=(targets != PADDING).sum())


def sequences(count, batch_size):
    """Return batches of sequences whose lengths differ by a factor of ten, so that most is padding."""
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(7, (count, 20), generator=generator)
    targets = torch.randint(5, (count, 20), generator=generator)
    for row, length in enumerate(torch.randint(1, 20, (count,), generator=generator).tolist()):
        targets[row, length:] = PADDING
    return list(zip(tokens.split(batch_size), targets.split(batch_size), strict=True))


def fit_sequences(directory, window=1, batch_size=16):
    builder = LearnerBuilder(directory).num_epochs(2).seed(1).devices(["cpu"]).num_threads(1)
    builder.metrics(LossMetric()).renderer(PlainRenderer()).grads_accumulation(window)
    learner = builder.build(TokenNet(), Sgd(), 0.5)
    learner.fit(sequences(48, batch_size), sequences(9, 9))
    return outcome(learner)


@pytest.mark.parametrize("size", [2, long(3)])
def test_padded_sequences_are_weighted_by_their_tokens_on_every_rank(size, tmp_path):
    one = fit_sequences(tmp_path / "one")

    found = run_ranks(fit_sequences, size, tmp_path / "ranks")

    assert_equals_one_process(found[0], one)


def test_padded_sequences_are_weighted_by_their_tokens_in_every_batch_of_a_window(tmp_path):
    large = fit_sequences(tmp_path / "large", 1, 48)

    windows = fit_sequences(tmp_path / "windows", 3, 16)
    ranks = run_ranks(fit_sequences, 2, tmp_path / "ranks", 3, 16)

    assert_equals_one_process((large[0], windows[1]), large)
    assert_equals_one_process((large[0], ranks[0][1]), large)


class FailingOnce(Net):
    """Has an infinite loss in its second training step on the rank *bad_rank*."""

    bad_rank, steps = None, 0

    def loss(self, logits, targets):
        loss = super().loss(logits, targets)
        self.steps += torch.is_grad_enabled()
        is_bad = self.steps == 2 and os.environ.get("RANK") == str(self.bad_rank) and torch.is_grad_enabled()
        return loss * torch.inf if is_bad else loss


def fit_with_a_bad_batch(directory, kind, bad_rank):
    model = FailingOnce(*build_net(norm=True))
    model.bad_rank = bad_rank
    learner = start(directory, 1).non_finite(NonFinite(kind=kind)).build(model, Adam(), 0.05)
    try:
        learner.fit(*loaders())
    except StageError as error:
        return type(error).__name__, str(error)
    return outcome(learner)


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_batch_that_is_not_finite_on_one_rank_is_skipped_by_all(bad_rank, tmp_path):
    found = run_ranks(fit_with_a_bad_batch, 2, tmp_path, "skip", bad_rank)

    assert found[0] == found[1]
    assert all(math.isfinite(value) for weights in found[0][1] for value in np.ravel(weights))
    assert (tmp_path / "train/epoch-1/Loss.log").read_text().count("\n") == 4  # of 5 batches


def test_batch_that_is_not_finite_on_one_rank_stops_that_rank_before_the_update(tmp_path):
    with pytest.raises(AssertionError, match="rank"):
        run_ranks(fit_and_raise, 2, tmp_path)

    assert not list(tmp_path.glob("checkpoint/trainer-*"))


def fit_and_raise(directory):
    model = FailingOnce(*build_net())
    model.bad_rank = 1
    start(directory, 1).build(model, Adam(), 0.05).fit(*loaders())


def build_with(directory, devices, optimizer="adam"):
    builder = start(directory).devices(devices)
    chosen = {"adam": Adam(), "lbfgs": Lbfgs(kind="lbfgs")}[optimizer]
    try:
        builder.build(build_net(), chosen, 0.05)
    except BuilderError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["cpu", "cpu", "cpu"],), "LOCAL_WORLD_SIZE is 2, but there are 3 devices"),
        ((["cpu"], "lbfgs"), "it cannot use 2 ranks"),
    ],
)
def test_what_ranks_cannot_do_is_rejected_at_build(arguments, message, tmp_path):
    found = run_ranks(build_with, 2, tmp_path, *arguments)

    assert all(message in each for each in found), found


def test_several_devices_without_a_launcher_are_rejected_with_its_command(tmp_path):
    with pytest.raises(BuilderError, match=r"torchrun --nproc-per-node 2"):
        start(tmp_path).devices(["cpu", "cpu"]).build(build_net(), Adam(), 0.05)


def interrupt_the_start(*, is_launched):
    """Wait for a launcher that has ended, or for a rank that never starts, until a signal arrives."""
    os.environ |= {"WORLD_SIZE": "2", "MASTER_PORT": "1" if is_launched else "0"}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(is_launched)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        join_group(timeout_seconds=3600)
    except KeyboardInterrupt:
        return "interrupted"


@pytest.mark.parametrize("is_launched", [True, False])
def test_signal_ends_the_wait_for_other_ranks(is_launched):
    assert run_ranks(partial(interrupt_the_start, is_launched=is_launched), 1) == ["interrupted"]


@pytest.mark.parametrize(("samples", "size"), [(0, 3), (1, 3), (2, 4), (7, 3), (8, 4), (100, 7)])
def test_shares_of_the_ranks_are_the_batch(samples, size):
    shares = [range(samples)[share_of(samples, rank, size)] for rank in range(size)]

    assert [*chain(*shares)] == [*range(samples)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert len(shares[0]) == max(map(len, shares))


@pytest.mark.parametrize("change", [long("carried window"), "summed and carried window"])
def test_carried_window_is_resumed_between_epochs(change, tmp_path):
    """The checkpoint of an epoch has the sums of all ranks, and each batch in them counts once."""
    whole = run_ranks(fit, 2, tmp_path / "whole", change)[0]

    resumed = run_ranks(fit_in_two_runs, 2, tmp_path / "resumed", change)[0]

    assert resumed == whole


def fit_in_two_runs(directory, change):
    """Train one epoch, and build the learner again for the second."""
    for epochs in (1, 2):
        learner = (
            CHANGES[change](start(directory, epochs)).checkpoint("auto").build(build_net(), Adam(), 0.05)
        )
        learner.fit(*loaders())
    return outcome(learner)
