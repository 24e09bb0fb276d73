"""Metrics built from params, and the errors for params and outputs that do not fit."""

from dataclasses import dataclass

import pytest
import torch

from stages.contracts.config import Use
from stages.contracts.errors import BuilderError, PluginError
from stages.contracts.outputs import ClassificationOutput, RegressionOutput
from stages.metrics import (
    AccuracyMetric,
    LossMetric,
    MetricAdapter,
    MetricOptions,
    MseMetric,
    TorchMetric,
    build_metric,
)

LOSS = torch.tensor(0.0)


def build(**params):
    return build_metric(Use(**params))


def test_metric_is_built_by_name():
    assert isinstance(build(kind="loss"), LossMetric)


@pytest.mark.parametrize("kind", ["precision", "recall", "f_beta"])
def test_default_rule_predicts_most_likely_of_four_classes(kind):
    """No class has a probability above 0.5."""
    output = ClassificationOutput(LOSS, torch.eye(4)[[0, 1, 2, 3]], torch.tensor([0, 1, 2, 2]))

    measured = build(kind=kind).measure(output)

    assert measured.value == build(kind=kind, top_k=1).measure(output).value > 60
    assert build(kind=kind, threshold=0.5).measure(output).value == 0


def test_torchmetrics_metric_is_built_by_import_path():
    metric = build(kind="torchmetrics.classification:MulticlassF1Score", num_classes=3, average="micro")
    output = ClassificationOutput(LOSS, torch.eye(3), torch.tensor([0, 1, 1]))

    assert isinstance(metric, TorchMetric)
    assert metric.name == "MulticlassF1Score"
    assert metric.measure(output).value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"kind": "builtins:object"}, PluginError, "no name, no unit, no measure"),
        ({"kind": "acuracy"}, PluginError, "Did you mean 'accuracy'?"),
        ({"kind": "top_k"}, PluginError, "the argument 'k' is missing"),
        ({"kind": "top_k", "k": 0}, BuilderError, "a k of 1 or more, not 0"),
        ({"kind": "recall", "top_k": 0}, BuilderError, "a top_k of 1 or more, not 0"),
        ({"kind": "recall", "top_k": 1, "threshold": 0.5}, BuilderError, "not both"),
        ({"kind": "recall", "reduction": "mean"}, BuilderError, "macro or micro, not 'mean'"),
        ({"kind": "auroc", "reduction": "mean"}, BuilderError, "macro or micro, not 'mean'"),
        ({"kind": "f_beta", "beta": 0}, BuilderError, "a beta above 0, not 0"),
        (
            {"kind": "torchmetrics.classification:MulticlassF1Score", "num_classes": 1},
            PluginError,
            "cannot be built from {'num_classes': 1}",
        ),
        (
            {"kind": "torchmetrics.regression:PearsonCorrCoef"},
            BuilderError,
            "a state 'mean_x' that cannot be joined",
        ),
        (
            {"kind": "torchmetrics.wrappers:MinMaxMetric", "base_metric": "loss"},
            PluginError,
            "cannot be built from",
        ),
    ],
)
def test_params_that_build_no_metric_are_rejected(params, error, message):
    with pytest.raises(error) as caught:
        build(**params)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("params", "output", "message"),
    [
        (
            {"kind": "top_k", "k": 4},
            ClassificationOutput(LOSS, torch.eye(3), torch.arange(3)),
            "a k of 4, but the model has 3 classes",
        ),
        (
            {"kind": "recall", "top_k": 4},
            ClassificationOutput(LOSS, torch.eye(3), torch.arange(3)),
            "needs 4 classes, but the model has 3",
        ),
        (
            {"kind": "mse"},
            RegressionOutput(LOSS, torch.zeros(3, 1), torch.zeros(3)),
            "predictions (3, 1) for targets (3,)",
        ),
        (
            {"kind": "torchmetrics.classification:MulticlassF1Score", "num_classes": 5},
            ClassificationOutput(LOSS, torch.eye(3), torch.arange(3)),
            "does not accept the output of the model's step",
        ),
    ],
)
def test_unsuitable_output_is_rejected(params, output, message):
    with pytest.raises(BuilderError) as caught:
        build(**params).measure(output)

    assert message in str(caught.value)


@dataclass(frozen=True)
class Mine:
    loss: torch.Tensor
    scores: torch.Tensor
    labels: torch.Tensor
    size: int


def test_metric_adapter_measures_users_own_output():
    metric = MetricAdapter(
        AccuracyMetric(),
        lambda mine: ClassificationOutput(mine.loss, mine.scores, mine.labels),
        measures=Mine,
    )

    measured = metric.measure(Mine(LOSS, torch.eye(4), torch.tensor([0, 1, 2, 2]), 4))

    assert measured.value == 75.0
    assert (metric.name, metric.unit, metric.better) == ("Accuracy", "%", AccuracyMetric.better)
    assert metric.measures is Mine


def test_metric_adapter_keeps_decimals():
    assert MetricAdapter(MseMetric(), list).decimals == 4


@pytest.mark.parametrize(
    ("name", "value"), [("train_only", True), ("reads_output", False), ("is_equal_on_ranks", True)]
)
def test_adapted_metric_has_every_option_of_its_metric(name, value):
    metric = MseMetric()
    setattr(metric, name, value)

    assert getattr(MetricOptions.of(MetricAdapter(metric, list)), name) == value
