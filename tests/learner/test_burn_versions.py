"""What differs between runs that follow Burn 0.21, Burn 0.22, or neither."""

import math

import pytest
import torch

from stages.contracts.outputs import ClassificationOutput
from stages.learner import EvaluatorBuilder
from stages.loggers import read_history
from stages.metrics import AurocMetric, FBetaScoreMetric, LearningRateMetric, PrecisionMetric, RecallMetric
from stages.optim import Adam, Cosine, Linear, Scheduler
from stages.records import BurnpackRecorder
from stages.renderers import NoRenderer

METRICS = (AurocMetric, PrecisionMetric)


def with_burnpack(builder):
    return builder.with_file_checkpointer(BurnpackRecorder())


CHOICES = {
    "default": lambda builder: builder,
    "0.21": lambda builder: builder.burn("0.21"),
    "0.22": lambda builder: builder.burn("0.22"),
    "burnpack": with_burnpack,
}


def run(start, tiny, directory, choice, *, rate=0.05, epochs=1, checkpoint=None):
    builder = CHOICES[choice](start(directory, epochs).renderer(NoRenderer()).grads_accumulation(3))
    builder.metrics(*(kind() for kind in METRICS)).metric_train_numeric(LearningRateMetric())
    if checkpoint:
        builder.checkpoint(checkpoint)
    make_net, load = tiny
    learner = builder.build(make_net(), Adam(), rate)
    learner.fit(*load())
    return learner


def lines(path):
    return [line.partition(",")[2] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("choice", "loss", "precision", "auroc"),
    [
        ("default", ["8", "3"], ["8", "3", "final"], ["8", "3", "final"]),
        ("0.21", ["8", "3"], ["8", "3"], ["8", "3"]),
        ("0.22", ["8", "3", "final"], ["8", "3", "final"], [""]),
        ("burnpack", ["8", "3", "final"], ["8", "3", "final"], [""]),
    ],
)
def test_logs_have_the_lines_of_the_version(choice, loss, precision, auroc, start, tiny, tmp_path):
    learner = run(start, tiny, tmp_path, choice)

    folder = tmp_path / "valid/epoch-1"
    assert lines(folder / "Loss.log") == loss
    assert lines(folder / "Precision_[Macro].log") == precision
    assert lines(folder / "AUROC_[Macro].log") == auroc
    if choice == "0.22":
        values = [(value.metric, value.value) for value in read_history(tmp_path) if value.split == "valid"]
        for metric, value in values:
            assert learner.history.value(1, "valid", metric) == value


@pytest.mark.parametrize(
    ("choice", "steps", "updates"), [("default", 4, 2), ("0.21", 4, 1), ("0.22", 2, 2), ("burnpack", 2, 2)]
)
def test_schedule_steps_and_the_rest_of_a_window_are_those_of_the_version(
    choice, steps, updates, start, tiny, tmp_path
):
    schedule = Scheduler(0.05, Linear(final=0.01, num_iters=16))

    learner = run(start, tiny, tmp_path, choice, rate=schedule)

    assert schedule.iteration == steps
    optimizer = learner.components.state.model.optimizer
    assert {int(state["step"]) for state in optimizer.state.values()} == {updates}
    rates = [line.split(",")[0] for line in (tmp_path / "train/epoch-1/Learning_Rate.log").open()]
    assert len(set(rates[:4])) == steps


def test_an_explicit_rest_of_a_window_is_kept(start, tiny, tmp_path):
    builder = start(tmp_path, 1).renderer(NoRenderer()).grads_accumulation(3, leftover="flush").burn("0.21")
    make_net, load = tiny
    learner = builder.build(make_net(), Adam(), 0.05)

    learner.fit(*load())

    states = learner.components.state.model.optimizer.state.values()
    assert {int(state["step"]) for state in states} == {2}


@pytest.mark.parametrize(("choice", "last"), [("default", 0.05), ("0.21", 0.05), ("burnpack", 0.025)])
def test_cosine_restarts_up_to_021(choice, last, start, tiny, tmp_path):
    builder = CHOICES[choice](start(tmp_path, 1).renderer(NoRenderer()))
    make_net, load = tiny
    schedule = Scheduler(0.05, Cosine(num_iters=2))

    builder.build(make_net(), Adam(), schedule).fit(*load())

    assert schedule.latest == pytest.approx(last)


def test_run_stopped_within_a_window_of_022_equals_an_uninterrupted_one(start, tiny, tmp_path):
    def train(directory, stop=None, checkpoint=None):
        builder = with_burnpack(start(directory, 2)).renderer(NoRenderer()).grads_accumulation(3)
        interrupter = builder.interrupter()

        class Stop(NoRenderer):
            def step(self, progress):
                if progress.batch == stop:
                    interrupter.stop()

        make_net, load = tiny
        schedule = Scheduler(0.05, Linear(final=0.01, num_iters=16))
        learner = builder.renderer(Stop()).checkpoint("auto").build(make_net(), Adam(), schedule)
        learner.fit(*load())
        return [value.value for value in learner.history], learner.model.state_dict()

    values, weights = train(tmp_path / "whole")
    train(tmp_path / "stopped", stop=2)
    resumed_values, resumed_weights = train(tmp_path / "stopped")

    assert resumed_values == values
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)


LOGITS = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("kind", "version", "value"),
    [
        (PrecisionMetric, None, 75.0),
        (PrecisionMetric, "0.21", 75.0),
        (PrecisionMetric, "0.22", 50.0),
        (RecallMetric, "0.22", 50.0),
        (FBetaScoreMetric, "0.22", 66.66666666666667),
        (AurocMetric, None, math.nan),
        (AurocMetric, "0.22", 50.0),
    ],
)
def test_absent_classes_have_the_value_of_the_version(kind, version, value):
    is_area = kind is AurocMetric
    targets = torch.zeros(3, dtype=torch.long) if is_area else torch.tensor([0, 1, 1])
    metric = kind()

    metric.burn = version

    output = ClassificationOutput(torch.tensor(0.0), LOGITS[:, :1] if is_area else LOGITS, targets)
    assert metric.measure(output).value == pytest.approx(value, nan_ok=True)


def test_logs_of_a_test_set_have_no_line_of_the_epoch_in_burn(tiny, tmp_path):
    make_net, load = tiny
    for version, last in ((None, "final"), ("0.21", "3"), ("0.22", "3")):
        builder = EvaluatorBuilder(tmp_path).metrics(PrecisionMetric()).burn(version).renderer(NoRenderer())
        builder.device("cpu").build(make_net()).eval("split", load()[1])

        assert lines(tmp_path / "test/split/Precision_[Macro].log")[-1] == last
