"""The optional settings of the builder."""

import logging
import math
import re
import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.events import Interrupter
from stages.contracts.history import Split
from stages.contracts.outputs import TrainOutput
from stages.devices.compilation import apply_gradient_checkpointing
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, DataWaitMetric, LossMetric, Mean, PeakMemoryMetric
from stages.models import MlpRegressor
from stages.optim import Adam, ClipByValue, Sgd
from stages.renderers import NoRenderer, PlainRenderer
from stages.runs import KeepBest, MetricEarlyStopping


def same(one, other):
    return all(
        torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


class Watching(NoRenderer):
    """Calls *then* after the batch with this number of this epoch and split."""

    def __init__(self, epoch, split, batch, then):
        self.at, self.then = (epoch, split, batch), then

    def step(self, progress):
        if (progress.epoch, progress.split, progress.batch) == self.at:
            self.then()


def test_run_interrupted_in_training_stops_after_the_batch_and_saves_no_epoch(train, tmp_path):
    interrupter = Interrupter()
    renderer = Watching(2, Split.TRAIN, 3, lambda: interrupter.stop("enough"))

    learner = train(tmp_path, change=lambda b: b.renderer(renderer).with_interrupter(interrupter))

    assert learner.epoch == 1
    assert len((tmp_path / "train/epoch-2/Loss.log").read_text().splitlines()) == 3
    assert not (tmp_path / "valid/epoch-2").exists()
    assert not (tmp_path / "checkpoint/trainer-2.mpk.gz").exists()
    assert interrupter.message == "enough"


def test_run_interrupted_in_validation_stops_and_can_resume(train, tmp_path):
    interrupter = Interrupter()
    renderer = Watching(2, Split.VALID, 1, interrupter.stop)

    learner = train(tmp_path, change=lambda b: b.renderer(renderer).with_interrupter(interrupter))
    resumed = train(tmp_path, checkpoint="auto")

    assert learner.epoch == 1
    assert resumed.resumed == "in epoch 2, after batch 1 of validation"


def test_interrupted_run_resumes_to_the_same_bytes(train, tmp_path):
    interrupter = Interrupter()
    renderer = Watching(2, Split.TRAIN, 2, interrupter.stop)
    uninterrupted = train(tmp_path / "uninterrupted")

    train(tmp_path / "interrupted", change=lambda b: b.renderer(renderer).with_interrupter(interrupter))
    resumed = train(tmp_path / "interrupted", checkpoint=1)

    assert same(uninterrupted, resumed)
    files = [
        {
            str(p.relative_to(tmp_path / name)): p.read_bytes()
            for p in (tmp_path / name / "train").rglob("*.log")
        }
        for name in ("uninterrupted", "interrupted")
    ]
    assert files[0] == files[1]


def test_next_run_of_a_builder_does_not_stop_for_a_stop_of_the_last_one(start, tiny, tmp_path):
    net, loaders = tiny
    builder = start(tmp_path, epochs=2)
    interrupter = builder.interrupter()
    builder.renderer(Watching(1, Split.TRAIN, 2, interrupter.stop))
    stopped = builder.build(net(), Adam(), 0.01)
    stopped.fit(*loaders())
    assert stopped.interrupted

    learner = builder.renderer(NoRenderer()).build(net(), Adam(), 0.01)
    learner.fit(*loaders())

    assert learner.epoch == 2
    assert not learner.interrupted


def test_interrupter_of_the_builder_stops_from_another_thread(start, tiny, tmp_path):
    net, loaders = tiny
    builder = start(tmp_path, epochs=10_000)
    handle = builder.interrupter()
    learner = builder.build(net(), Adam(), 0.01)

    threading.Timer(0.3, handle.stop).start()
    learner.fit(*loaders())

    assert learner.epoch < 10_000


def test_deterministic_algorithms_change_no_number_on_a_cpu(train, tmp_path):
    fastest = train(tmp_path / "fastest")
    deterministic = train(tmp_path / "deterministic", change=lambda b: b.deterministic())

    assert same(fastest, deterministic)


def test_gradient_checkpointing_changes_no_number(train, tmp_path):
    kept = train(tmp_path / "kept")
    recomputed = train(tmp_path / "recomputed", change=lambda b: b.gradient_checkpointing())

    assert same(kept, recomputed)


def test_gradient_checkpointing_recomputes_the_modules_in_containers():
    calls = []
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    for number, layer in enumerate(model.layers):
        layer.forward = partial(
            lambda number, forward, x: calls.append(number) or forward(x), number, layer.forward
        )

    apply_gradient_checkpointing(model)
    model.layers[1](model.layers[0](torch.ones(1, 2))).sum().backward()

    assert calls == [0, 1, 1, 0]


def test_model_may_update_itself(start, tiny, tmp_path):
    net, loaders = tiny
    rates = []
    model = net()
    model.optimize = lambda optimizer, gradients, rate: rates.append(
        (type(optimizer).__name__, len(gradients), rate)
    )

    start(tmp_path, 1).build(model, Sgd(kind="sgd"), 0.5).fit(*loaders())

    assert rates == [("SGD", 4, 0.5)] * 4
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), net().parameters(), strict=True))


def test_model_that_updates_itself_receives_clipped_gradients(start, tiny, tmp_path):
    net, loaders = tiny
    largest = []
    model = net()
    model.optimize = lambda optimizer, gradients, rate: largest.append(max(g.abs().max() for g in gradients))

    start(tmp_path, 1).build(model, Sgd(kind="sgd", clipping=ClipByValue(value=1e-3)), 0.5).fit(*loaders())

    assert max(largest) <= 1e-3


def test_metrics_registers_for_both_splits_and_text_metrics_have_no_curve(tiny, tmp_path):
    net, loaders = tiny
    builder = LearnerBuilder(tmp_path).metrics(LossMetric()).metrics_text(AccuracyMetric())

    learner = builder.build(net(), Adam(), 0.1)
    learner.fit(*loaders())

    assert learner.history.metrics() == ["Loss"]
    assert {path.name for path in tmp_path.rglob("*.log")} == {"Loss.log", "Accuracy.log", "experiment.log"}


def test_progress_loggers_receive_the_events_of_the_renderer(train, tmp_path):
    heard = []
    logger = Watching(1, Split.VALID, 2, lambda: heard.append("logger"))

    train(tmp_path, change=lambda b: b.with_progress_logger(logger))

    assert heard == ["logger"]


def test_progress_begins_with_the_first_epoch_of_a_resumed_run(train, tmp_path):
    class First(NoRenderer):
        def start(self, progress):
            first.append(progress.first_epoch)

    first = []
    for epochs in (1, 2):
        train(tmp_path, epochs=epochs, checkpoint="auto", change=lambda b: b.renderer(First()))

    assert first == [1, 2]


def test_label_is_in_the_log_the_progress_and_the_lines_of_the_renderer(train, tmp_path, capsys):
    class Named(NoRenderer):
        def start(self, progress):
            labels.append(progress.label)

    labels = []
    label = "two layers, seed 1"

    train(
        tmp_path,
        epochs=1,
        change=lambda b: b.label(label).renderer(PlainRenderer()).with_progress_logger(Named()),
    )

    assert labels == [label]
    assert capsys.readouterr().out.startswith(f"{label}\nepoch 1/1 |")
    assert f"Starting training of {label}\n" in (tmp_path / "experiment.log").read_text()


def test_experiment_log_has_the_users_records_and_can_be_turned_off(train, tmp_path):
    class Talking(NoRenderer):
        def epoch_end(self, progress, history):
            logging.getLogger("my.lab").warning("hello")

    train(tmp_path / "a", epochs=1, change=lambda b: b.renderer(Talking()))
    train(tmp_path / "b", epochs=1, change=lambda b: b.with_application_logger(None))

    text = (tmp_path / "a/experiment.log").read_text()
    assert " WARN my::lab: hello" in text
    assert "Executing training step for epoch 1" in text
    assert "Saving checkpoint 1 to" in text
    assert not (tmp_path / "b/experiment.log").exists()


def test_telemetry_stays_out_of_history_and_tracked_files(start, tiny, tmp_path):
    class Clock:
        name, unit, telemetry = "Clock", "s", True

        def measure(self, output):
            return LossMetric().measure(output)

    net, loaders = tiny
    learner = start(tmp_path, 1).metrics(Clock()).build(net(), Adam(), 0.1)
    learner.fit(*loaders())

    assert (tmp_path / "telemetry/train/epoch-1/Clock.log").exists()
    assert not (tmp_path / "train/epoch-1/Clock.log").exists()
    assert learner.history.metrics() == ["Accuracy", "Loss"]


def test_telemetry_of_training_ends_the_line_of_each_epoch(start, tiny, tmp_path, capsys):
    class Reading:
        unit, telemetry = "s", True

        def __init__(self, name, value):
            self.name, self.value = name, value

        def measure(self, output):
            return Mean(self.value, 1)

    net, loaders = tiny
    builder = start(tmp_path, 2).metrics(Reading("Clock", 0.5), Reading("Sensor", math.nan))
    builder.metric_valid_numeric(Reading("Valid Clock", 0.25)).build(net(), Adam(), 0.1).fit(*loaders())

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[-1] for line in lines] == ["Clock 0.50 s, Valid Clock 0.25 s"] * 2


def test_data_wait_and_peak_memory_are_logged_once_per_epoch_of_each_split(start, tiny, tmp_path):
    net, loaders = tiny
    start(tmp_path, 2).metrics(DataWaitMetric(), PeakMemoryMetric()).build(net(), Adam(), 0.1).fit(*loaders())

    for log in ("Data_Wait.log", "Peak_Memory.log"):
        paths = sorted(tmp_path.rglob(log))
        folders = [f"telemetry/{split}/epoch-{epoch}" for split in ("train", "valid") for epoch in (1, 2)]
        assert [str(path.parent.relative_to(tmp_path)) for path in paths] == folders
        assert all(re.fullmatch(r"[\d.]+,final\n", path.read_text()) for path in paths)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (
            lambda b: b.early_stopping(MetricEarlyStopping(n_epochs=2)),
            "MetricEarlyStopping uses the valid 'Loss'.*registered: none",
        ),
        (
            lambda b: b.metrics(AccuracyMetric()).with_checkpointing_strategy(KeepBest()),
            "KeepBest uses the valid 'Loss'.*registered: train Accuracy, valid Accuracy",
        ),
        (
            lambda b: b.metrics_text(LossMetric()).early_stopping(MetricEarlyStopping(n_epochs=2)),
            "is not registered as a number",
        ),
    ],
)
def test_rule_over_an_unregistered_metric_is_rejected_at_build(tmp_path, tiny, mistake, words):
    net, _ = tiny

    with pytest.raises(BuilderError, match=words):
        mistake(LearnerBuilder(tmp_path)).build(net(), Adam())


def test_metric_that_cannot_measure_the_model_is_rejected_at_build(tmp_path):
    builder = LearnerBuilder(tmp_path).metrics(AccuracyMetric())

    with pytest.raises(
        BuilderError, match="'Accuracy' measures ClassificationOutput.*returns RegressionOutput"
    ):
        builder.build(MlpRegressor((3,), 1), Adam())


def test_components_work_in_a_custom_loop(tiny):
    """The loop is that of the chapter on custom training loops in the Burn book."""
    net, loaders = tiny
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    train, _ = loaders()
    totals = []

    for epoch in range(1, 6):
        train.set_epoch(epoch)
        total = None
        for batch in train:
            step = model.train_step(batch)
            for parameter, gradient in zip(model.parameters(), step.gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            measured = LossMetric().measure(step.item)
            total = measured if total is None else total + measured
        totals.append(total.value)

    assert totals[-1] < totals[0]
    assert isinstance(model, nn.Module)


@pytest.mark.parametrize("annotation", [Any, object, TrainOutput])
def test_step_whose_annotation_names_no_output_fits_every_metric(annotation, start, tiny, tmp_path):
    class Annotated(type(tiny[0]())):
        def train_step(self, batch) -> annotation:
            return super().train_step(batch)

    model = Annotated(*tiny[0]())

    assert start(tmp_path).build(model, Adam(), 0.1).model is model
