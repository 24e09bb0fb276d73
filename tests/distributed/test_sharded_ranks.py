"""Ranks that shard the parameters (FSDP2) train what one process trains, and leave the same records."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from long_tests import cases, long
from rank_runs import (
    CHANGES,
    SIZES,
    STOP_AT,
    Net,
    assert_equals_one_process,
    build_net,
    fit,
    fit_in_parts,
    gather,
    loaders,
    outcome,
    resume,
    start,
    stop_within_epoch,
)
from ranks import run_ranks
from run_files import read_run_files
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep, RegressionStep, backward
from stages.optim import AdaGrad, Adam, Ema, Muon, NonFinite, Sgd, Swa
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer
from stages.runs import FileCheckpointer

SHORT = ("plain", "carried window", "averaged weights")
"""Changes that handle the shards differently; those of loaders and metrics are in test_ranks.py."""


@pytest.mark.parametrize(
    ("change", "size"),
    [(change, 2) if change in SHORT else long(change, 2) for change in CHANGES]
    + [long(change, 4) for change in CHANGES],
)
def test_sharded_ranks_train_what_one_process_trains(change, size, tmp_path):
    one = fit(tmp_path / "one", change)

    results = run_ranks(fit, size, tmp_path / "ranks", change, SIZES["usual"], "fsdp")

    assert_equals_one_process(results[0], one)
    assert all(weights == results[0][1] for _, weights in results)


@pytest.mark.parametrize("sizes", cases({name: [sizes] for name, sizes in SIZES.items()}, ["a few samples"]))
def test_rank_without_a_sample_takes_part_and_does_not_count(sizes, tmp_path):
    one = fit(tmp_path / "one", sizes=sizes)

    results = run_ranks(fit, 4, tmp_path / "ranks", "plain", sizes, "fsdp")

    assert_equals_one_process(results[0], one)


def tree_of(value):
    """Return *value* with the dtype and shape of each tensor in its place."""
    if isinstance(value, dict):
        return {key: tree_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [tree_of(each) for each in value]
    return (value.dtype, value.shape) if isinstance(value, torch.Tensor) else type(value)


@pytest.mark.parametrize("change", [long("plain"), "carried window"])
def test_checkpoint_of_sharded_ranks_has_the_layout_of_one_process(change, tmp_path):
    fit(tmp_path / "one", change)

    run_ranks(fit, 2, tmp_path / "ranks", change, SIZES["usual"], "fsdp")

    folders = [tmp_path / name / "checkpoint" for name in ("one", "ranks")]
    one, ranks = (FileCheckpointer(folder, NamedMpkGzFileRecorder()).restore(2) for folder in folders)
    for part in ("model", "optim", "scheduler"):
        assert tree_of(getattr(one, part)) == tree_of(getattr(ranks, part))
    assert tree_of(one.trainer["window"]) == tree_of(ranks.trainer["window"])
    names = [
        sorted(path.name for path in (tmp_path / name / "checkpoint").iterdir()) for name in ("one", "ranks")
    ]
    assert names[0] == names[1]


@pytest.mark.long  # test_ranks.py has it without shards, and the next test resumes from shards
@pytest.mark.parametrize("window", [1, 3])
def test_sharded_run_that_any_rank_stops_resumes_to_the_same_bytes(window, tmp_path):
    run_ranks(fit_in_parts, 2, tmp_path / "uninterrupted", (), 0.3, window, "fsdp")

    found = run_ranks(fit_in_parts, 2, tmp_path / "interrupted", ((1, STOP_AT),), 0.3, window, "fsdp")

    assert found[0][0][0] == (None, True)
    assert read_run_files(tmp_path / "interrupted") == read_run_files(tmp_path / "uninterrupted")


@pytest.mark.parametrize(("size", "strategy"), [(1, "auto"), long(2, "ddp"), long(4, "fsdp")])
def test_run_that_was_saved_in_shards_resumes_on_others(size, strategy, tmp_path):
    uninterrupted = fit_in_parts(tmp_path / "one", (), 0.0)

    run_ranks(stop_within_epoch, 2, tmp_path / "ranks", "fsdp")
    found = run_ranks(resume, size, tmp_path / "ranks", strategy)

    assert found[0][0].startswith("in epoch")
    assert_equals_one_process(found[0][1], uninterrupted[1])


def fit_sgd(directory, epochs, strategy):
    """Train to the end of *epochs* with SGD, which is fused without shards."""
    builder = start(directory, epochs).strategy(strategy).checkpoint("auto")
    learner = builder.build(build_net(), Sgd(momentum=0.9), 0.05)
    learner.fit(*loaders())
    return learner.resumed, outcome(learner)


def test_run_with_fused_sgd_resumes_in_shards(tmp_path):
    one = fit_sgd(tmp_path / "one", 2, "auto")

    fit_sgd(tmp_path / "ranks", 1, "auto")
    found = run_ranks(fit_sgd, 2, tmp_path / "ranks", 2, "fsdp")

    assert found[0][0] == "after epoch 1"
    assert_equals_one_process(found[0][1], one[1])


RANK_OF_LAST_ROW = 1


def fit_averaged(directory, average, strategy):
    """Train a model with running statistics; return the history, and the average of its weights."""
    builder = start(directory).strategy(strategy).average_weights(average)
    learner = builder.build(build_net(norm=True), Sgd(), 0.5)  # Adam would enlarge rounding errors
    learner.fit(*loaders())
    with learner.apply_average():
        return outcome(learner)


@pytest.mark.parametrize("average", [Ema(decay=0.9), long(Swa(start_epoch=1))])
def test_average_of_sharded_weights_and_whole_buffers_is_that_of_ranks_without_shards(average, tmp_path):
    whole, sharded = (
        run_ranks(fit_averaged, 2, tmp_path / strategy, average, strategy) for strategy in ("ddp", "fsdp")
    )

    assert_equals_one_process(sharded[0], whole[0])


class Direct(Net):
    """A model that computes its gradients without `backward`."""

    def train_step(self, batch):
        item = self.forward_classification(batch)
        item.loss.backward()
        return TrainOutput(self, [each.grad for each in self.parameters()], item)


class Weightless(Net):
    """A model that does not pass the weight of its output to `backward`."""

    def train_step(self, batch):
        item = replace(self.forward_classification(batch), weight=2.5)
        return TrainOutput(self, backward(self, item.loss), item)


class Bypassing(Net):
    """A model whose step calls its layers, and not itself."""

    def train_step(self, batch):
        inputs, targets = batch
        logits = self[0](inputs)
        item = ClassificationOutput(self.loss(logits, targets), logits, targets)
        return TrainOutput(self, backward(self, item.loss), item)


def explain(directory, kind):
    builder, model = start(directory).strategy("fsdp"), build_net()
    if kind == "bypassing":
        model = Bypassing(*model)
    if kind == "direct":
        model = Direct(*model)
    if kind == "weight":
        model = Weightless(*model)
    if kind == "scalar":
        model[0].register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    if kind == "dtypes":
        model[0].bias.data = model[0].bias.data.double()
    if kind == "fp16":
        builder.precision("fp16")
    if kind == "norm":
        builder.sync_batch_norm()
    try:
        builder.build(model, Adam(), 0.05).fit(*loaders())
    except BuilderError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("direct", "Direct.train_step calls loss.backward() itself"),
        ("weight", "Pass the weight to both: backward(self, loss, weight)"),
        ("bypassing", "Call self(inputs) in the step"),
        (
            "scalar",
            "cannot shard 0: fully_shard doesn't support scalar parameters. Change scale to a 1D tensor",
        ),
        ("dtypes", "cannot shard 0: its parameters are of float32 and float64"),
        ("fp16", "precision fp16 cannot be used with the strategy fsdp"),
        ("norm", "sync_batch_norm cannot be used with the strategy fsdp"),
    ],
)
def test_what_cannot_be_sharded_is_rejected(kind, message, tmp_path):
    assert message in run_ranks(explain, 2, tmp_path, kind)[0]


class Outside(Net):
    """A model with layers outside of its `Sequential`, whose parameters the root gathers."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, inputs):
        return self.last(self.body(self.first(inputs)))


def fit_outside(directory, strategy, sanity_check):
    builder = LearnerBuilder(directory).metrics(LossMetric()).num_epochs(3).seed(3).strategy(strategy)
    builder.devices(["cpu"]).sanity_check(sanity_check)
    learner = builder.build(Outside(), Adam(), 0.05)
    learner.fit(*loaders())
    return outcome(learner)


@pytest.mark.parametrize("sanity_check", [long(0), 1])
def test_layers_outside_of_a_sequential_are_trained_after_a_validation(sanity_check, tmp_path):
    one = fit_outside(tmp_path / "one", "auto", sanity_check)

    found = run_ranks(fit_outside, 2, tmp_path / "ranks", "fsdp", sanity_check)

    assert_equals_one_process(found[0], one)


class Tying(Net):
    """A model whose first two entries share a weight, and whose convolution is channels-last."""

    def __init__(self):
        torch.manual_seed(1)
        layers = nn.Linear(4, 4), nn.Linear(4, 4), nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 2, padding=1)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self[1].weight = self[0].weight
        self.to(memory_format=torch.channels_last)


def fit_tied(directory, strategy):
    learner = start(directory).strategy(strategy).build(Tying(), Sgd(momentum=0.9), 0.1)
    learner.fit(*loaders())
    return outcome(learner)


def test_sharded_ranks_train_tied_and_channels_last_weights_as_one_process_does(tmp_path):
    one = fit_tied(tmp_path / "one", "auto")

    found = run_ranks(fit_tied, 2, tmp_path / "ranks", "fsdp")

    assert_equals_one_process(found[0], one)
    assert found[0] == found[1]


class Overflowing(Net):
    """A model with an infinite gradient in the last row of its last layer, in one batch."""

    batches = 0

    def train_step(self, batch):
        step = super().train_step(batch)
        self.batches += 1
        part = step.gradients[-2].to_local() if self.batches == 2 else torch.empty(0)
        if len(part) and int(os.environ["RANK"]) == RANK_OF_LAST_ROW:
            part[-1] = torch.inf
        return step


def skip_overflow(directory, samples):
    """Train on batches of *samples*, one with an infinite gradient; return whether the weights are finite."""
    builder = start(directory).strategy("fsdp").non_finite(NonFinite(kind="skip"))
    learner = builder.build(Overflowing(*build_net()), Adam(), 0.05)
    learner.fit(*loaders(5 * samples, 29, samples))
    return all(gather(each).isfinite().all() for each in learner.model.parameters())


@pytest.mark.parametrize("samples", [1, long(8)])
def test_gradient_that_is_not_finite_is_found_on_the_rank_that_has_it(samples, tmp_path):
    """With batches of one sample, that rank has none of its own."""
    assert run_ranks(skip_overflow, 2, tmp_path, samples) == [True, True]


OPTIMIZERS = {
    "torch's AdamW": lambda model: torch.optim.AdamW(model.parameters(), 0.05, weight_decay=0.1),
    "SGD": lambda _: Sgd(momentum=0.9),
    "AdaGrad": lambda _: AdaGrad(),
}


def shard_optimizer(directory, kind):
    model = build_net()
    strategy = "fsdp" if "RANK" in os.environ else "auto"
    learner = start(directory).strategy(strategy).build(model, OPTIMIZERS[kind](model), 0.05)
    learner.fit(*loaders())
    return outcome(learner)


@pytest.mark.parametrize("kind", cases({kind: [kind] for kind in OPTIMIZERS}, ["torch's AdamW"]))
def test_other_optimizers_train_the_shards(kind, tmp_path):
    one = shard_optimizer(tmp_path / "one", kind)

    results = run_ranks(shard_optimizer, 2, tmp_path / "ranks", kind)

    assert_equals_one_process(results[0], one)


class Regression(RegressionStep, nn.Sequential):
    pass


def fit_numbers(directory, outputs):
    """Train a model of *outputs* numbers with Muon for a step, and return its weights."""
    torch.manual_seed(1)
    model = Regression(nn.Linear(4, outputs))
    batches = [(torch.randn(6, 4), torch.randn(6, outputs))]
    strategy = "fsdp" if "RANK" in os.environ else "auto"
    builder = LearnerBuilder(directory).devices(["cpu"]).num_threads(1).renderer(PlainRenderer())
    builder.metrics(LossMetric()).strategy(strategy).num_epochs(2)
    builder.build(model, Muon(), 0.1).fit(batches)
    return [gather(parameter).tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("outputs", [1, 2])
def test_muon_updates_a_matrix_with_fewer_rows_than_ranks(outputs, tmp_path):
    one = fit_numbers(tmp_path / "one", outputs)

    results = run_ranks(fit_numbers, 3, tmp_path / "ranks", outputs)

    for weights in results:
        for whole, of_one in zip(weights, one, strict=True):
            assert torch.allclose(torch.tensor(whole), torch.tensor(of_one), atol=2e-3)


class Wide(ClassificationStep, nn.Sequential):
    """Four layers, of 64 MB each with 4096 features."""

    def __init__(self, features):
        super().__init__(*(nn.Linear(features, features, bias=False) for _ in range(4)))


def read_status(name):
    """Return the bytes of entry *name* in the status of this process."""
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name)]
    return int(line.split()[1]) * 1024


def train_wide(directory, features):
    """Train and save a model of four layers of *features*² parameters for two steps."""
    builder = LearnerBuilder(directory).devices(["cpu"]).num_threads(1).strategy("fsdp")
    builder.metrics(LossMetric()).with_file_checkpointer(NamedMpkGzFileRecorder(compression=0))
    learner = builder.renderer(PlainRenderer()).build(Wide(features), Adam(), 1e-3)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
    batch = torch.randn(4, features), torch.arange(4)
    learner.fit([batch] * 2, [batch])


def peak_of_wide_model(directory):
    """Return by how much the memory of this process grew at most, after it had trained a small model."""
    train_wide(directory / "small", 8)
    before = read_status("VmRSS")
    train_wide(directory / "wide", 4096)
    return read_status("VmHWM") - before


@pytest.mark.long
def test_rank_holds_only_its_part_of_the_state(tmp_path):
    """The state is the weights, their gradients and the two moments of Adam, 1 GB in four layers."""
    peaks = run_ranks(peak_of_wide_model, 2, tmp_path)

    assert max(peaks) < 0.65 * 4 * 4 * 64 * 2**20


def fused_sgd(parameters):
    return torch.optim.SGD(parameters, fused=True)


def refuse_optimizers(folder):
    """Return the messages with which a rank refuses optimizers."""
    messages = []
    for build in (torch.optim.Adafactor, torch.optim.Rprop, fused_sgd):
        model = build_net()
        builder = LearnerBuilder(folder).devices(["cpu", "cpu"]).strategy("fsdp")
        with pytest.raises(BuilderError) as caught:
            builder.build(model, build(model.parameters()), 0.1)
        messages.append(str(caught.value))
    return messages


def test_optimizers_that_cannot_update_shards_are_refused(tmp_path):
    refused = run_ranks(refuse_optimizers, 2, tmp_path)

    assert refused[0] == refused[1]
    assert refused[0] == [
        "Adafactor cannot update sharded parameters. Use another optimizer, or the strategy ddp",
        "Rprop cannot update sharded parameters. Use another optimizer, or the strategy ddp",
        "fused SGD cannot update sharded parameters. Set fused: false, or the strategy ddp",
    ]
