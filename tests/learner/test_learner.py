"""The learner: its files, its exact resume, and invalid arguments."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from long_tests import cases
from torch import nn

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.history import Split
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import Hook, LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Mlp, MlpRegressor
from stages.optim import (
    Adam,
    AdamW,
    ClipByGlobalNorm,
    Cosine,
    Lbfgs,
    NonFinite,
    NonFiniteError,
    Scheduler,
    Sgd,
)
from stages.records import HalfPrecision, NamedMpkGzFileRecorder
from stages.runs import KeepLast

OPTIMIZERS = {
    "adam": lambda model: Adam(weight_decay=0.1),
    "adamw": lambda model: AdamW(kind="adamw"),
    "sgd": lambda model: Sgd(kind="sgd", momentum=0.9, dampening=0.0, nesterov=True),
    "torch's own": lambda model: torch.optim.NAdam(model.parameters()),
}


def same(one, other):
    return all(
        torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


def content(directory):
    """Return the content of every file except the one with times."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "experiment.log"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "optimizer", cases({name: (make,) for name, make in OPTIMIZERS.items()}, ("adam", "torch's own"))
)
def test_resumed_run_equals_uninterrupted_run(train, tmp_path, optimizer):
    def schedule():
        return Scheduler(0.05, Cosine(kind="cosine", num_iters=7))

    train(tmp_path / "uninterrupted", epochs=4, optimizer=optimizer, lr=schedule())

    train(tmp_path / "interrupted", epochs=2, optimizer=optimizer, lr=schedule())
    train(tmp_path / "interrupted", epochs=3, checkpoint=2, optimizer=optimizer, lr=schedule())
    train(tmp_path / "interrupted", epochs=4, checkpoint=3, optimizer=optimizer, lr=schedule())

    assert content(tmp_path / "interrupted") == content(tmp_path / "uninterrupted")


@pytest.mark.parametrize("leftover", ["flush", "drop", "carry"])
def test_resumed_run_restores_the_accumulation_window(train, tmp_path, leftover):
    """30 samples are 4 batches; a window of 3 leaves one at the end of the first epoch."""

    def change(builder):
        return builder.grads_accumulation(3, leftover=leftover)

    uninterrupted = train(tmp_path / "uninterrupted", change=change)
    train(tmp_path / "interrupted", epochs=1, change=change)
    resumed = train(tmp_path / "interrupted", checkpoint=1, change=change)

    assert same(uninterrupted, resumed)


def test_nan_stops_the_run_before_it_reaches_the_weights(start, tiny, tmp_path):
    net, loaders = tiny
    model = net()
    train, valid = loaders()
    train.dataset.inputs[7] = math.nan

    with pytest.raises(NonFiniteError, match=r"epoch 1, batch \d: NaN in loss, NaN in 0.weight"):
        start(tmp_path).build(model, Adam(), 0.1).fit(train, valid)

    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_nan_can_be_skipped(start, tiny, tmp_path):
    net, loaders = tiny
    train, valid = loaders()
    train.dataset.inputs[7] = math.nan

    learner = start(tmp_path).non_finite(NonFinite(kind="skip")).build(net(), Adam(), 0.1)

    assert all(parameter.isfinite().all() for parameter in learner.fit(train, valid).parameters())


def test_clipping_comes_from_the_optimizers_config_or_the_builder(start, tiny, tmp_path):
    net, loaders = tiny
    tight = ClipByGlobalNorm(max_norm=1e-3)

    by_config = start(tmp_path / "a").build(net(), Sgd(kind="sgd", clipping=tight), 1.0)
    by_builder = start(tmp_path / "b").grad_clipping(tight).build(net(), Sgd(kind="sgd"), 1.0)
    for learner in (by_config, by_builder):
        learner.fit(*loaders())

    assert same(by_config, by_builder)
    moved = [(a - b).norm() for a, b in zip(net().parameters(), by_config.model.parameters(), strict=True)]
    assert max(moved) <= 12 * 1e-3  # twelve steps, each at most that long


def test_lbfgs_trains(start, tiny, tmp_path):
    net, loaders = tiny
    model = net()
    model[1] = nn.Identity()  # every evaluation of a batch would drop others

    learner = start(tmp_path, 4).build(model, Lbfgs(kind="lbfgs"), 0.05)
    learner.fit(*loaders(batch_size=30))

    losses = learner.history.series(Split.TRAIN, "Loss")
    assert losses[4] < losses[1]


@pytest.mark.parametrize("in_thread", [True, False])
def test_training_beside_another_thread_is_reported(start, tiny, tmp_path, caplog, in_thread):
    """A training in a hook, in the same thread, ends before the other one continues."""

    def train_another():
        start(tmp_path / "other", 1).build(tiny[0](), Adam(), 0.05).fit(*tiny[1]())

    class Train(Hook):
        def before_epoch(self, context):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(train_another).result() if in_thread else train_another()

    start(tmp_path / "run", 1).hooks(Train()).build(tiny[0](), Adam(), 0.05).fit(*tiny[1]())

    assert ("another thread of this process trains too" in caplog.text) == in_thread


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_copy_of_a_learner_continues_as_the_learner_does(start, tiny, tmp_path, optimizer):
    class Stop(Hook):
        def after_epoch(self, context):
            if context.epoch == 2 and not learner.interrupted:
                interrupter.stop()

    builder = start(tmp_path, 3).hooks(Stop())
    interrupter = builder.interrupter()
    model = tiny[0]()
    learner = builder.build(model, OPTIMIZERS[optimizer](model), 0.05)
    learner.fit(*tiny[1]())
    assert learner.epoch == 2
    other = copy.deepcopy(learner)
    before = [parameter.clone() for parameter in model.parameters()]

    other.fit(*tiny[1]())

    assert all(map(torch.equal, before, model.parameters()))
    learner.fit(*tiny[1]())
    assert (learner.epoch, other.epoch) == (3, 3)
    assert same(learner, other)


def test_torchs_own_scheduler_works_and_resumes(start, tiny, tmp_path):
    net, loaders = tiny

    def run(directory, epochs, checkpoint=None):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        builder = start(directory, epochs)
        if checkpoint:
            builder.checkpoint(checkpoint)
        learner = builder.build(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5))
        learner.fit(*loaders())
        assert optimizer.param_groups[0]["lr"] == 0.05 * 0.5 ** ((4 * epochs - 1) // 3)
        return learner

    uninterrupted = run(tmp_path / "uninterrupted", 3)
    run(tmp_path / "interrupted", 2)

    assert same(uninterrupted, run(tmp_path / "interrupted", 3, checkpoint=2))


def test_runs_are_equal_with_equal_seeds_only(train, tmp_path):
    one = train(tmp_path / "one")
    train(tmp_path / "two")
    other = train(tmp_path / "other", change=lambda builder: builder.seed(2))

    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert not same(one, other)


def test_workers_change_no_byte(train, tmp_path):
    train(tmp_path / "alone")
    train(tmp_path / "helped", workers=2)

    assert content(tmp_path / "alone") == content(tmp_path / "helped")


def test_loggers_and_renderers_change_no_weight(train, tmp_path):
    class Silent:
        def __getattr__(self, name):
            return lambda *_: None

    silent = Silent()

    watched = train(tmp_path / "watched")
    unwatched = train(
        tmp_path / "unwatched", change=lambda builder: builder.renderer(silent).metric_loggers(silent, silent)
    )

    assert same(watched, unwatched)
    assert not (tmp_path / "unwatched" / "train").exists()


def test_artifact_tree_equals_that_of_burn(train, tmp_path):
    """Two files are ours: the state of the loop, and the machine, which nothing tracks."""
    train(tmp_path, epochs=1)

    assert sorted(content(tmp_path)) == [
        "checkpoint/model-1.mpk.gz",
        "checkpoint/optim-1.mpk.gz",
        "checkpoint/scheduler-1.mpk.gz",
        "checkpoint/trainer-1.mpk.gz",
        "environment.json",
        "train/epoch-1/Accuracy.log",
        "train/epoch-1/Loss.log",
        "valid/epoch-1/Accuracy.log",
        "valid/epoch-1/Loss.log",
    ]
    lines = (tmp_path / "valid/epoch-1/Accuracy.log").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["8", "3"]


def test_last_two_and_best_checkpoint_are_kept(train, tmp_path):
    learner = train(tmp_path, epochs=6, lr=0.5)

    losses = learner.history.series(Split.VALID, "Loss")
    best = min(losses, key=losses.get)
    there = {int(p.name.split("-")[1].split(".")[0]) for p in (tmp_path / "checkpoint").glob("trainer-*")}
    assert there == {5, 6, best}


def test_configured_retention_rule_is_applied(train, tmp_path):
    train(tmp_path, epochs=3, change=lambda builder: builder.with_checkpointing_strategy(KeepLast(1)))

    assert len(list((tmp_path / "checkpoint").iterdir())) == 4


def test_accumulating_equals_one_batch_of_the_joined_size(start, tiny, tmp_path):
    """4 × 16 against 64, and 150 samples, so that the last window of an epoch has two batches of 16 and 6."""
    net, _ = tiny
    inputs = torch.randn(150, 4, generator=torch.Generator().manual_seed(0))
    samples = TensorDataset(inputs, inputs[:, :3].argmax(1))
    trained = []
    for batch_size, accumulated in ((64, 1), (16, 4)):
        model = net()
        model[1] = nn.Identity()  # dropout would draw other masks for other batches
        loader = DataLoaderBuilder(NormalizeBatcher()).batch_size(batch_size).shuffle(5).build(samples)
        learner = start(tmp_path / str(batch_size), 1).grads_accumulation(accumulated)
        trained.append(learner.build(model, Sgd(kind="sgd"), 0.1).fit(loader, loader))

    for one, other in zip(*(model.parameters() for model in trained), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_text_metric_is_logged_without_a_curve(tmp_path, tiny):
    net, loaders = tiny
    builder = LearnerBuilder(tmp_path).metric_train(LossMetric()).metric_valid(LossMetric())

    learner = builder.build(net(), Adam(), 0.1)
    learner.fit(*loaders())

    assert (tmp_path / "train/epoch-1/Loss.log").exists()
    assert learner.history.metrics() == []


def test_summary_is_printed_on_request(train, tmp_path, capsys):
    train(tmp_path / "a", change=lambda builder: builder.summary())
    assert "= Learner Summary =" in capsys.readouterr().out

    train(tmp_path / "b")
    assert "Learner Summary" not in capsys.readouterr().out


def test_loader_of_torch_works(start, tiny, tmp_path):
    net, _ = tiny
    samples = [(torch.randn(4), torch.tensor(i % 3)) for i in range(9)]
    loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)

    learner = start(tmp_path, 1).build(net(), Adam(), 0.1)
    learner.fit(loader, loader)

    assert math.isfinite(learner.history.series(Split.TRAIN, "Loss")[1])


def test_without_a_rate_the_optimizers_own_is_used(start, tiny, tmp_path):
    net, loaders = tiny
    one, other = net(), net()

    start(tmp_path / "a").build(one, Sgd(kind="sgd", learning_rate=0.3)).fit(*loaders())
    start(tmp_path / "b").build(other, Sgd(kind="sgd"), 0.3).fit(*loaders())

    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_half_precision_checkpoints_log_a_warning(tmp_path, caplog):
    LearnerBuilder(tmp_path).with_file_checkpointer(NamedMpkGzFileRecorder(HalfPrecision))

    assert "will not equal an uninterrupted one" in caplog.text


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda b: b.num_epochs(0), "pass an integer from 1"),
        (lambda b: b.grads_accumulation(0), "pass an integer from 1"),
        (lambda b: b.devices("cpu"), "pass a list of devices"),
        (lambda b: b.devices([]), "pass a list of devices"),
        (
            lambda b: b.devices(["gpu"]).build(_net(), Adam()),
            "unknown device 'gpu': use one of this machine: auto",
        ),
        (lambda b: b.devices(["cuda:99"]).build(_net(), Adam()), "this machine has no device 'cuda:99'"),
        (lambda b: b.metric_train(LossMetric()).metric_train(LossMetric()), "two metrics of the train split"),
        (lambda b: b.checkpoint(5).build(_net(), Adam()), "checkpoint\\(5\\) needs a checkpointer"),
        (lambda b: b.build(nn.Linear(1, 1), Adam()), "Linear has no train_step and no valid_step"),
        (lambda b: b.build(_net(), Adam()).save(), "save\\(\\) needs a checkpointer"),
    ],
)
def test_invalid_builder_is_rejected_with_the_reason(tmp_path, mistake, words):
    with pytest.raises(BuilderError, match=words):
        mistake(LearnerBuilder(tmp_path))


def test_missing_checkpoint_is_an_error_at_build(start, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint of epoch 5; found: none"):
        start(tmp_path).checkpoint(5).build(_classes(), Adam())


def test_checkpoint_of_another_model_is_rejected(train, start, tmp_path):
    train(tmp_path, epochs=1)

    with pytest.raises(CheckpointError, match="does not fit this model"):
        start(tmp_path).checkpoint(1).build(_classes(), Adam())


def test_metric_that_cannot_measure_an_unannotated_step_fails_at_the_first_batch(tmp_path):
    class Silent(MlpRegressor):
        def train_step(self, batch):
            return super().train_step(batch)

        def valid_step(self, batch):
            return super().valid_step(batch)

    loader = DataLoaderBuilder(NormalizeBatcher()).build(TensorDataset(torch.ones(2, 3), torch.ones(2, 1)))
    learner = LearnerBuilder(tmp_path).metric_train_numeric(AccuracyMetric()).build(Silent((3,), 1), Adam())

    with pytest.raises(BuilderError, match="'Accuracy' measures .*returned RegressionOutput"):
        learner.fit(loader, loader)


def test_loader_without_batches_is_rejected(tmp_path):
    empty = DataLoaderBuilder(NormalizeBatcher()).build(TensorDataset(torch.ones(0, 3), torch.ones(0, 1)))

    with pytest.raises(BuilderError, match="no batches"):
        LearnerBuilder(tmp_path).build(_net(), Adam()).fit(empty, empty)


def _net():
    return MlpRegressor((3,), 1)


def _classes():
    return Mlp((7,), 2)
