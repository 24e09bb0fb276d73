"""The metric and the direction of rules that monitor a metric."""

from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction, Split
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.optim import TorchScheduler
from stages.runs import AnyOf, KeepBest, KeepLast, MetricEarlyStopping

from .conftest import loaders, net

UP = {"mode": "max", "patience": 0, "factor": 0.5, "threshold": 0.0}
DOWN = {"mode": "min", "patience": 0, "factor": 0.5, "threshold": 0.0}


def build(directory, scheduler, *metrics, epochs=1):
    """Return a learner whose rate *scheduler* makes of the optimizer, and that optimizer."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    builder = LearnerBuilder(directory).devices(["cpu"]).num_epochs(epochs).metrics(*metrics)
    return builder.seed(1).build(model, optimizer, scheduler(optimizer)), optimizer


@pytest.mark.parametrize(
    ("monitor", "split", "metric", "options"),
    [
        ("Accuracy", Split.VALID, "Accuracy", UP),
        ("train Accuracy", Split.TRAIN, "Accuracy", UP),
        ("train Loss", Split.TRAIN, "Loss", DOWN),
        ("valid Loss", Split.VALID, "Loss", DOWN),
        (None, Split.VALID, "Loss", DOWN),
    ],
)
def test_plateau_follows_the_metric_that_it_monitors(tmp_path, monitor, split, metric, options):
    def scheduler(optimizer):
        return TorchScheduler(ReduceLROnPlateau(optimizer, **options), monitor=monitor)

    learner, optimizer = build(tmp_path, scheduler, LossMetric(), AccuracyMetric(), epochs=6)
    learner.fit(*loaders())
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.05)
    reference = ReduceLROnPlateau(other, **options)
    for value in learner.history.series(split, metric).values():
        reference.step(value)

    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]


def plain(optimizer, **options):
    return ReduceLROnPlateau(optimizer, **options)


def monitoring(optimizer, monitor, **options):
    return TorchScheduler(ReduceLROnPlateau(optimizer, **options), monitor=monitor)


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (partial(plain, **UP), "mode='max'.*validation loss.*monitor='Accuracy'"),
        (partial(monitoring, monitor="Loss", **UP), "highest.*valid 'Loss'.*lowest"),
        (partial(monitoring, monitor="Accuracy", **DOWN), "lowest.*valid 'Accuracy'.*highest"),
        (partial(monitoring, monitor="Acuracy", **UP), "ReduceLROnPlateau uses the valid 'Acuracy'"),
        (partial(monitoring, monitor="test Loss", **DOWN), "valid 'test Loss'.*not registered"),
        (
            lambda optimizer: TorchScheduler(StepLR(optimizer, 1), monitor="Loss"),
            "StepLR does not monitor a metric",
        ),
    ],
)
def test_plateau_over_unsuitable_values_is_rejected(tmp_path, scheduler, words):
    with pytest.raises(BuilderError, match=words):
        build(tmp_path, scheduler, LossMetric(), AccuracyMetric())


RULES = [
    (lambda b: b.with_checkpointing_strategy(KeepBest("Accuracy")), "KeepBest"),
    (lambda b: b.with_checkpointing_strategy(AnyOf((KeepLast(2), KeepBest("Accuracy")))), "KeepBest"),
    (lambda b: b.early_stopping(MetricEarlyStopping(n_epochs=2, metric="Accuracy")), "MetricEarlyStopping"),
]


@pytest.mark.parametrize(("choose", "name"), RULES)
def test_rule_in_the_wrong_direction_logs_a_warning(tmp_path, choose, name, caplog):
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).metrics(AccuracyMetric(), LossMetric())
    model = net()

    choose(builder).build(model, torch.optim.SGD(model.parameters()), 0.1)

    assert f"{name} treats the lowest value as the best" in caplog.text
    assert "the best valid 'Accuracy' is the highest" in caplog.text


@pytest.mark.parametrize(
    "rule", [KeepBest(), AnyOf((KeepLast(1), KeepBest())), AnyOf((AnyOf((KeepBest(),)), KeepLast(2)))]
)
def test_missing_metric_is_reported_with_the_rule_that_uses_it(tmp_path, rule):
    builder = LearnerBuilder(tmp_path).devices(["cpu"]).metrics(AccuracyMetric())

    with pytest.raises(BuilderError, match="^KeepBest uses the valid 'Loss'"):
        builder.with_checkpointing_strategy(rule).build(net(), torch.optim.SGD(net().parameters()), 0.1)


def test_metric_without_a_direction_may_be_monitored_in_either(tmp_path):
    class Plain(LossMetric):
        name = "Plain"
        better = None

    for direction in Direction:
        builder = LearnerBuilder(tmp_path).devices(["cpu"]).metrics(Plain())
        model = net()
        builder.with_checkpointing_strategy(KeepBest("Plain", direction=direction)).build(
            model, torch.optim.SGD(model.parameters()), 0.1
        )
