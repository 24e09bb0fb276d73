"""Failures during training must not damage weights, checkpoints or logs."""

import copy
import math
import os
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from run_files import read_run_files
from torch import nn
from torch.utils.checkpoint import checkpoint

from stages.contracts.errors import BuilderError, StageError
from stages.contracts.events import Interrupter
from stages.contracts.history import Split
from stages.learner import EvaluatorBuilder, Hook, LearnerBuilder
from stages.loggers import read_history
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, Adan, Lbfgs, NonFinite, NonFiniteError
from stages.records import DefaultRecorder
from stages.renderers import NoRenderer
from stages.runs import MetricEarlyStopping


class Normed(ClassificationStep, nn.Sequential):
    """A model with running statistics."""


def normed():
    torch.manual_seed(3)
    return Normed(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def epochs_of(directory):
    return sorted(
        int(path.name.split("-")[1].split(".")[0]) for path in directory.glob("checkpoint/trainer-*")
    )


class Stopping(NoRenderer):
    """Asks to stop in the second batch of the second epoch."""

    def step(self, progress):
        if (progress.epoch, progress.batch) == (2, 2):
            progress.interrupter.stop()


def test_shorter_run_removes_the_output_of_a_longer_one(train, tmp_path):
    train(tmp_path, epochs=6)
    train(tmp_path, epochs=3)

    assert max(epochs_of(tmp_path)) == 3
    assert read_history(tmp_path).epochs == 3


def test_resumed_run_without_a_seed_uses_that_of_the_checkpoint(tiny, tmp_path):
    net, loaders = tiny

    def run(name, epochs, resumed=None):
        builder = LearnerBuilder(tmp_path / name).num_epochs(epochs).renderer(NoRenderer())
        builder.metrics(LossMetric()).with_file_checkpointer(DefaultRecorder())
        if resumed:
            builder.checkpoint(resumed)
        model = net()
        torch.manual_seed(77 if resumed is None else 5)
        return builder.build(model, Adam(), 0.05).fit(*loaders())

    uninterrupted = run("uninterrupted", 4)
    run("interrupted", 2)

    assert equal(state(uninterrupted), state(run("interrupted", 4, resumed=2)))


def test_gradient_checkpointing_does_not_change_running_statistics(start, tiny, tmp_path):
    _, loaders = tiny
    kept, recomputed = normed(), normed()

    start(tmp_path / "a").build(kept, Adam(), 0.05).fit(*loaders())
    start(tmp_path / "b").gradient_checkpointing().build(recomputed, Adam(), 0.05).fit(*loaders())

    assert equal(state(kept), state(recomputed))


class Batches:
    """Batches of a loader that is told when the iterator over them is closed."""

    def __init__(self, count):
        self.count, self.is_closed = count, False

    def __iter__(self):
        try:
            yield from [(torch.randn(2, 4), torch.tensor([0, 1]))] * self.count
        finally:
            self.is_closed = True


class Failing(Normed):
    """Fails in its 101st training step, as a kernel on a device does."""

    steps = 0

    def train_step(self, batch):
        self.steps += 1
        if self.steps == 101:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with ...")
        return super().train_step(batch)


def test_failure_of_the_device_reports_the_last_position_and_frees_nothing_that_it_uses(tmp_path):
    torch.manual_seed(3)
    model, batches = Failing(nn.Linear(4, 3)), Batches(200)
    builder = LearnerBuilder(tmp_path).metrics(LossMetric()).renderer(NoRenderer())
    learner = builder.build(model, Adam(), 0.05)

    with pytest.raises(StageError, match=r"failed after batch 100 of epoch 1 \(train\)"):
        learner.fit(batches)

    assert not batches.is_closed


def test_skipped_batch_changes_neither_weights_nor_running_statistics(start, tiny, tmp_path):
    _, loaders = tiny
    train, valid = loaders()
    train.dataset.inputs[7] = math.nan

    learner = start(tmp_path, 2).non_finite(NonFinite(kind="skip")).build(normed(), Adam(), 0.05)
    learner.fit(train, valid)

    assert all(tensor.isfinite().all() for tensor in learner.model.state_dict().values())
    assert math.isfinite(learner.history.series(Split.TRAIN, "Loss")[2])


class Centered(ClassificationStep, nn.Linear):
    """Assigns new tensors to its buffers, the mean of the inputs and the number of batches."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs):
        self.seen = self.seen + 1
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return super().forward(inputs - self.mean)


def test_skipped_batch_changes_no_buffer_to_which_the_model_assigns(start, tmp_path):
    torch.manual_seed(3)
    good = [(torch.randn(2, 4), torch.tensor([0, 1])) for _ in range(3)]
    bad = (torch.full((2, 4), math.nan), torch.tensor([0, 1]))

    def train(name, batches):
        torch.manual_seed(3)
        builder = start(tmp_path / name, 2).non_finite(NonFinite(kind="skip"))
        return builder.build(Centered(), Adam(), 0.05).fit(batches).state_dict()

    torch.testing.assert_close(train("skipped", [*good, bad]), train("without", good), rtol=0, atol=0)


class Steep(Normed):
    """Its gradients are finite in each batch, and their sum over batches overflows."""

    def train_step(self, batch):
        step = super().train_step(batch)
        return replace(step, gradients=[torch.full_like(each, 3e38) for each in step.gradients])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("rule", "limit"), [("stop", 1), ("skip", 1), ("skip", 3)])
def test_overflowing_sum_of_finite_gradients_does_not_reach_the_weights(
    rule, limit, reduction, start, tiny, tmp_path
):
    model = Steep(*normed())
    before = copy.deepcopy(list(model.parameters()))
    builder = start(tmp_path, 1).grads_accumulation(2, reduction=reduction)
    learner = builder.non_finite(NonFinite(kind=rule, limit=limit)).build(model, Adam(), 0.05)

    with pytest.raises(NonFiniteError) if limit == 1 else nullcontext():
        learner.fit(*tiny[1](batch_size=8))  # four batches: two sums

    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_incomplete_epoch_is_neither_saved_nor_resumed(start, tiny, tmp_path):
    net, loaders = tiny
    learner = (
        start(tmp_path, 3).renderer(Stopping()).with_interrupter(Interrupter()).build(net(), Adam(), 0.05)
    )
    learner.fit(*loaders())

    for go_on in (learner.save, lambda: learner.fit(*loaders())):
        with pytest.raises(BuilderError, match=r"stopped in the middle of epoch 2.*checkpoint\(1\)"):
            go_on()


@pytest.mark.parametrize(
    ("saves", "advice"), [(True, r'Build it again with checkpoint\("auto"\)$'), (False, "with a new model$")]
)
def test_learner_stopped_in_its_first_epoch_names_only_checkpoints_that_exist(saves, advice, tiny, tmp_path):
    builder = LearnerBuilder(tmp_path).metrics(LossMetric()).renderer(NoRenderer())
    if saves:
        builder.with_file_checkpointer(DefaultRecorder())
    learner = builder.build(tiny[0](), Adam(), 0.05)
    with pytest.raises(BuilderError, match="NoneType"):
        learner.fit([None])

    with pytest.raises(BuilderError, match=advice):
        learner.fit(*tiny[1]())


def test_resumed_run_that_had_stopped_early_does_not_continue(train, tmp_path):
    def change(builder):
        return builder.early_stopping(MetricEarlyStopping(n_epochs=1, min_delta=9.0))

    stopped = train(tmp_path, epochs=9, change=change)
    resumed = train(tmp_path, epochs=9, checkpoint=stopped.epoch, change=change)

    assert resumed.epoch == stopped.epoch < 9


def test_tensors_kept_from_validation_can_be_used_in_training(start, tiny, tmp_path):
    class Caching(Normed):
        scale = None

        def forward(self, inputs):
            if self.scale is None or len(self.scale) < len(inputs):
                self.scale = torch.ones(len(inputs), 1)
            return super().forward(inputs) * self.scale[: len(inputs)]

    model = Caching(*normed())
    train, _ = tiny[1](batch_size=4)
    _, valid = tiny[1](batch_size=11)

    start(tmp_path, 2).build(model, Adam(), 0.05).fit(train, valid)


def test_layers_under_reentrant_checkpointing_are_trained(start, tiny, tmp_path):
    class Reentrant(Normed):
        def forward(self, inputs):
            hidden = checkpoint(self[0], inputs.requires_grad_(), use_reentrant=True)
            return self[3](self[2](hidden))

    model = Reentrant(*normed())
    before = state(model)

    start(tmp_path, 1).build(model, Adam(), 0.05).fit(*tiny[1]())

    assert not torch.equal(before["0.weight"], model[0].weight)


def test_every_batch_before_the_one_that_ended_the_run_is_in_the_log(start, tiny, tmp_path):
    net, loaders = tiny
    train, valid = loaders()
    train.set_epoch(1)
    last = list(train.order.batches(1))[-1]
    train.dataset.inputs[last[0]] = math.nan

    with pytest.raises(NonFiniteError):
        start(tmp_path).build(net(), Adam(), 0.05).fit(train, valid)

    assert len((tmp_path / "train/epoch-1/Loss.log").read_text().splitlines()) == len(train) - 1


def test_lbfgs_keeps_the_weights_if_an_evaluation_is_not_finite(start, tiny, tmp_path):
    class Breaking(Normed):
        calls = 0

        def loss(self, logits, targets):
            self.calls += 1
            return super().loss(logits, targets) * (math.nan if self.calls == 3 else 1.0)

    model = Breaking(*normed())
    before = copy.deepcopy(list(model.parameters()))

    with pytest.raises(NonFiniteError):
        start(tmp_path).build(model, Lbfgs(kind="lbfgs"), 0.1).fit(*tiny[1]())

    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Breaking(Normed):
    """Its loss is NaN in one call of a training step."""

    calls, broken = 0, None

    def train_step(self, batch):
        self.calls += 1
        return super().train_step(batch)

    def loss(self, logits, targets):
        loss = super().loss(logits, targets)
        return loss * math.nan if self.training and self.calls == self.broken else loss


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("evaluation", [1, 2, 4])
def test_skipped_step_of_lbfgs_restores_weights_buffers_and_optimizer(
    evaluation, line_search, start, tiny, tmp_path
):
    def train(name, epochs, broken=None):
        model = Breaking(*normed())
        model.broken = broken
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn=line_search)
        builder = start(tmp_path / name, epochs).non_finite(NonFinite(kind="skip"))
        builder.build(model, optimizer, 0.1).fit(*tiny[1](batch_size=30))  # one step an epoch
        return model, optimizer.state_dict()["state"]

    model, kept = train("one step", 1)
    skipping, state_after = train("and a skipped one", 2, broken=model.calls + evaluation)

    assert skipping.calls == model.calls + evaluation
    assert equal(state(skipping), state(model))
    torch.testing.assert_close(state_after, kept, rtol=0, atol=0)


def by_loader(samples, generator):
    return {"shuffle": True, "generator": generator, "batch_size": 4}


def by_sampler(samples, generator):
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * len(samples), 20, generator=generator)
    return {"sampler": sampler, "batch_size": 4}


def by_batch_sampler(samples, generator):
    sampler = torch.utils.data.RandomSampler(samples, generator=generator)
    return {"batch_sampler": torch.utils.data.BatchSampler(sampler, 4, drop_last=False)}


@pytest.mark.parametrize("options", [by_loader, by_sampler, by_batch_sampler])
def test_torch_loaders_with_generators_of_their_own_resume_exactly(options, start, tiny, tmp_path):
    net, _ = tiny
    samples = [(torch.full((4,), float(i % 5)), torch.tensor(i % 3)) for i in range(20)]

    def run(name, epochs, resumed=None):
        generator = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader(samples, **options(samples, generator))
        builder = start(tmp_path / name, epochs)
        model = net()
        learner = (builder.checkpoint(resumed) if resumed else builder).build(model, Adam(), 0.05)
        return learner.fit(loader, loader)

    uninterrupted = run("uninterrupted", 3)
    run("interrupted", 1)

    assert equal(state(uninterrupted), state(run("interrupted", 3, resumed=1)))


def test_run_that_changes_the_current_folder_writes_to_its_directory(start, tiny, tmp_path, monkeypatch):
    class ChangeFolder(Hook):
        def after_step(self, context):
            os.chdir(tmp_path / "other")

    start(tmp_path / "expected").build(tiny[0](), Adam(), 0.05).fit(*tiny[1]())
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    start("run").hooks(ChangeFolder()).build(tiny[0](), Adam(), 0.05).fit(*tiny[1]())

    assert read_run_files(tmp_path / "run") == read_run_files(tmp_path / "expected")
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize("optimizer", [Adam(), Adan(), Lbfgs(max_iter=2)], ids=lambda config: config.kind)
def test_default_device_of_the_program_changes_no_byte_of_a_resumed_run(optimizer, start, tiny, tmp_path):
    def train(name, device):
        for epochs in (1, 3):
            builder = start(tmp_path / name, epochs).checkpoint_every(steps=2).checkpoint("auto")
            model, loaders = tiny[0](), tiny[1]()
            with device:
                builder.build(model, optimizer, 0.05).fit(*loaders)
        return read_run_files(tmp_path / name)

    assert train("meta", torch.device("meta")) == train("cpu", nullcontext())  # meta tensors have no values


def test_builder_can_be_used_again(start, tiny, tmp_path):
    net, loaders = tiny
    builder = start(tmp_path, 1)
    first = builder.build(net(), Adam(), 0.05)
    builder.metric_train_numeric(Renamed())
    second = builder.build(net(), Adam(), 0.05)

    first.fit(*loaders())

    assert first.history.metrics() == ["Accuracy", "Loss"]
    assert not second.interrupted


class Renamed(LossMetric):
    name = "Other"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda b, m: b.build(m, torch.optim.Adam(normed().parameters())),
            "6 of the 6 parameters .* not the model's",
        ),
        (lambda b, m: b.grads_accumulation(4).build(m, Lbfgs(kind="lbfgs")), "cannot accumulate over 4"),
        (lambda b, m: b.devices(["cpu", "cpu"]).build(m, Adam()), r"torchrun --nproc-per-node 2"),
        (
            lambda b, m: b.build(m, sgd := torch.optim.SGD(m.parameters()), plateau(sgd)),
            "uses the valid 'Loss'",
        ),
        (
            lambda b, m: EvaluatorBuilder("x").metrics(AccuracyMetric()).metrics_text(AccuracyMetric()),
            "two metrics",
        ),
    ],
)
def test_wrong_combination_is_rejected_at_build(tmp_path, make, words):
    with pytest.raises(BuilderError, match=words):
        make(LearnerBuilder(tmp_path).devices(["cpu"]), normed())


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
