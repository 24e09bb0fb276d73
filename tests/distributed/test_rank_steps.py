"""Steps of several ranks whose shares, parameters or averages differ are those of one process."""

import os

import pytest
import torch
import torch.nn.functional as F
from long_tests import long
from rank_runs import (
    STOP_AT,
    Net,
    Stopping,
    assert_equals_one_process,
    build_net,
    fit_in_parts,
    outcome,
    shuffled_loaders,
    start,
)
from ranks import run_ranks
from run_files import read_run_files

from stages.contracts.outputs import ClassificationOutput
from stages.distributed import join_group
from stages.distributed.rank_group import MIN_SWAPPED_BYTES
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.optim import Adam, Ema, Sgd, Swa
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer

PADDING = -100


class Unfreezing(Net):
    """A model whose first layer is trained from the third step on."""

    steps = 0

    def train_step(self, batch):
        self.steps += 1
        self[0].requires_grad_(self.steps >= 3)
        return super().train_step(batch)


class Freezing(Net):
    """A model whose first layer is frozen in each second step."""

    steps = 0

    def train_step(self, batch):
        self.steps += 1
        self[0].requires_grad_(self.steps % 2 == 1)
        return super().train_step(batch)


class Padded(Net):
    """A model whose loss is the mean over the targets that are not padding."""

    def forward_classification(self, batch):
        inputs, targets = batch
        logits = self(inputs)
        loss = F.cross_entropy(logits, targets, ignore_index=PADDING)
        return ClassificationOutput(loss, logits, targets, weight=int((targets != PADDING).sum()))


def make_batches(padded=0):
    """Return two batches of 8 samples; the last *padded* targets of each are padding."""
    generator = torch.Generator().manual_seed(7)
    inputs, targets = torch.randn(16, 4, generator=generator), torch.arange(16) % 3
    targets.view(2, 8)[:, 8 - padded :] = PADDING
    return [*zip(inputs.split(8), targets.split(8), strict=True)]


def fit_unfreezing(directory, window):
    builder = start(directory).grads_accumulation(window)
    model = Unfreezing(*build_net())
    model[0].requires_grad_(False)
    learner = builder.build(model, torch.optim.Adam(model.parameters(), 0.05), 0.05)
    learner.fit(make_batches(), make_batches())
    return outcome(learner)


def fit_freezing(directory, window, leftover="flush"):
    builder = start(directory).grads_accumulation(window, leftover=leftover)
    model = Freezing(*build_net())
    learner = builder.build(model, torch.optim.Adam(model.parameters(), 0.05), 0.05)
    batches = [*make_batches(), *make_batches()[:1]]
    learner.fit(batches, batches)
    return outcome(learner)


def fit_padded(directory, window):
    learner = start(directory).grads_accumulation(window).build(Padded(*build_net()), Sgd(), 0.05)
    batches = make_batches(4)
    learner.fit(batches, batches)
    return outcome(learner)


def fit_weighted(directory, window, strategy="auto"):
    """Train with class weights, on batches of 6, 6 and 1 labelled samples."""
    model = build_net()
    model.configure_loss(class_weights=[1.0, 10.0, 0.5], label_smoothing=0.1)
    builder = start(directory).grads_accumulation(window).strategy(strategy)
    learner = builder.build(model, Adam(), 0.05)
    batches = [*make_batches(2), tuple(each[:1] for each in make_batches()[1])]
    learner.fit(batches, batches)
    return outcome(learner)


@pytest.mark.parametrize("strategy", ["ddp", long("fsdp")])
def test_class_weights_are_those_of_the_batch_and_not_of_the_share(strategy, tmp_path):
    one = fit_weighted(tmp_path / "one", 1)

    found = run_ranks(fit_weighted, 2, tmp_path / "ranks", 1, strategy)

    assert_equals_one_process(found[0], one)


def fit_carried(directory, window):
    return fit_freezing(directory, window, "carry")


@pytest.mark.parametrize("window", [long(1), 2])
@pytest.mark.parametrize("fit", [fit_unfreezing, fit_freezing, fit_carried, fit_padded, fit_weighted])
def test_ranks_train_what_one_process_trains(fit, window, tmp_path):
    one = fit(tmp_path / "one", window)

    found = run_ranks(fit, 2, tmp_path / "ranks", window)

    assert found[0] == found[1]
    assert_equals_one_process(found[0], one)


class Balancing(Stopping):
    """A model with a loss that is scaled by the mean of its previous ones."""

    scale = 1.0

    def loss(self, logits, targets):
        loss = super().loss(logits, targets) * self.scale
        self.scale = 0.9 * self.scale + 0.1 * loss.item()
        return loss

    def training_state(self):
        return {"scale": self.scale}

    def load_training_state(self, state):
        self.scale = state["scale"]


def fit_balancing(directory, *stops):
    return fit_in_parts(directory, stops, kind=Balancing)


@pytest.mark.parametrize("stop", [STOP_AT, long(STOP_AT + 20)])
def test_run_resumes_with_the_training_state_of_each_rank(stop, tmp_path):
    """The first stop is in the first epoch, and the other one in the second."""
    run_ranks(fit_balancing, 2, tmp_path / "uninterrupted")

    found = run_ranks(fit_balancing, 2, tmp_path / "interrupted", (1, stop))

    assert found[0][0][0] == (None, True)
    assert read_run_files(tmp_path / "interrupted") == read_run_files(tmp_path / "uninterrupted")


class TimeLimit:
    """An early stopping rule that the ranks apply at different times."""

    def reason(self, history):
        return "the time is over" if history.epochs > int(os.environ["RANK"]) else None


def fit_limited(directory):
    learner = start(directory, 5).early_stopping(TimeLimit()).build(build_net(), Adam(), 0.05)
    learner.fit(*shuffled_loaders())
    return learner.epoch


def test_all_ranks_stop_when_the_early_stopping_rule_applies_on_one(tmp_path):
    assert run_ranks(fit_limited, 2, tmp_path) == [1, 1]


def fit_unseeded(directory, epochs, seed, average=None):
    """Train to *epochs* from the newest checkpoint, in a process whose generators have *seed*."""
    builder = LearnerBuilder(directory).metrics(LossMetric()).devices(["cpu"]).num_threads(1)
    builder.num_epochs(epochs).checkpoint("auto").with_file_checkpointer(NamedMpkGzFileRecorder())
    if average is not None:
        builder.average_weights(average)
    model = build_net(0.3, norm=True)
    torch.manual_seed(seed)
    learner = builder.renderer(PlainRenderer()).build(model, Adam(), 0.05)
    learner.fit(*shuffled_loaders())
    return outcome(learner)


@pytest.mark.parametrize(
    "average",
    [long(None, id="weights"), pytest.param(Ema(decay=0.9), id="ema"), long(Swa(start_epoch=1), id="swa")],
)
def test_run_without_a_seed_resumes_with_that_of_its_checkpoint(average, tmp_path):
    """The averages have running statistics, which differ on the ranks within an epoch."""
    uninterrupted = run_ranks(fit_unseeded, 2, tmp_path / "uninterrupted", 3, 1, average)

    run_ranks(fit_unseeded, 2, tmp_path / "resumed", 2, 1, average)
    resumed = run_ranks(fit_unseeded, 2, tmp_path / "resumed", 3, 2, average)

    assert resumed == uninterrupted
    assert resumed[0] == resumed[1]


def add(numbers):
    """Return the sum over the ranks of tensors with *numbers*, some with very different exponents."""
    group = join_group()
    tensors = [torch.randn(number, generator=generator(group.rank)).mul(4).exp() for number in numbers]
    for each in tensors:
        group.sum(each)
    return tensors


def generator(rank):
    return torch.Generator().manual_seed(rank)


def test_sum_of_two_ranks_has_the_bits_of_an_addition_for_small_and_large_tensors():
    numbers = (1, 1000, MIN_SWAPPED_BYTES // 4 - 1, MIN_SWAPPED_BYTES // 4, 300_001)
    parts = [[torch.randn(n, generator=generator(rank)).mul(4).exp() for n in numbers] for rank in range(2)]

    found = run_ranks(add, 2, numbers)

    for first, second, own, other in zip(*parts, *found, strict=True):
        assert torch.equal(own, first + second)
        assert torch.equal(other, own)


BROADCAST_DTYPES = [torch.bool, torch.int16, torch.uint16, torch.uint64, torch.bfloat16, torch.complex64]


def broadcast_dtypes():
    """Return tensors of rank 0 of several dtypes, as they are on this rank after a broadcast."""
    group = join_group()
    values = torch.arange(1, 4) * int(group.is_main)
    tensors = [values.to(dtype) for dtype in BROADCAST_DTYPES]
    tensors += [values[0].to(torch.int16), torch.empty(0, dtype=torch.int16), torch.stack([values] * 2).t()]
    group.broadcast_tensors(tensors)
    return [tensor.tolist() for tensor in tensors]


def test_buffers_of_every_dtype_reach_all_ranks():
    """The backend gloo accepts some dtypes only."""
    found = run_ranks(broadcast_dtypes, 2)

    assert found[0] == found[1]
    assert found[1][1] == [1, 2, 3]


class SharingNorm(Net):
    """A model with a batch norm under two names, which a state dict has too."""

    def __init__(self):
        norm = torch.nn.BatchNorm1d(4)
        super().__init__(norm, torch.nn.Linear(4, 4), norm, torch.nn.Linear(4, 3))


def fit_shared_norm(directory):
    """Return the averages of the running statistics under both names, as they are on this rank."""
    torch.manual_seed(1)
    builder = start(directory, 1).average_weights(Ema(decay=0.5))
    learner = builder.build(SharingNorm(), Sgd(), 0.1)
    learner.fit(*shuffled_loaders())
    state = learner.components.state.model.average.state
    return [state[f"{number}.running_mean"].tolist() for number in (0, 2)]


def test_average_of_a_shared_buffer_is_that_of_rank_0_under_each_name(tmp_path):
    found = run_ranks(fit_shared_norm, 2, tmp_path)

    assert found[0][0] == found[0][1]
    assert found[1] == found[0]
