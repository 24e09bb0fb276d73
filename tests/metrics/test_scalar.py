"""The mean of any number that the output of a step has."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from stages.contracts.config import Use
from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction, Split
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric, ScalarMetric
from stages.metrics.registry import build_metric
from stages.models.steps import backward
from stages.optim import Sgd
from stages.params.fit_params import FitConfig
from stages.records import DefaultRecorder
from stages.renderers import NoRenderer


@dataclass(frozen=True)
class Detection:
    """An output of a model with two losses."""

    loss: torch.Tensor
    loss_box: torch.Tensor
    boxes: int
    size: int
    share: float = 0.5


class Detector(nn.Module):
    """A model whose second loss is the mean over some samples."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def valid_step(self, batch):
        has_box = batch > 0
        loss_box = (self.scale * batch)[has_box].sum() / has_box.sum().clamp(min=1)
        return Detection(self.scale.sum() + loss_box, loss_box, int(has_box.sum()), len(batch))

    def train_step(self, batch):
        item = self.valid_step(batch)
        return TrainResult(self, backward(self, item.loss), item)


@dataclass(frozen=True)
class TrainResult:
    model: Any
    gradients: Any
    item: Any


SAMPLES = torch.tensor([-1.0, 2.0, 5.0, -3.0, 0.5, 7.0, -2.0, -1.0])


def fit(directory):
    """Train on batches of 3, 3 and 2 samples with a rate too small to change anything."""
    metrics = [LossMetric(), ScalarMetric("loss_box", name="Box loss", weight="boxes", better="lowest")]
    builder = LearnerBuilder(directory).renderer(NoRenderer()).metrics(*metrics, ScalarMetric("share"))
    builder.with_file_checkpointer(DefaultRecorder()).checkpoint("auto").num_epochs(1).devices(["cpu"])
    learner = builder.build(Detector(), Sgd(), 1e-30)
    batches = list(SAMPLES.split(3))
    learner.fit(batches, batches)
    return learner.history


def test_value_of_an_epoch_is_the_mean_over_its_weight(tmp_path):
    history = fit(tmp_path)

    expected = SAMPLES[SAMPLES > 0].double().mean()
    for split in (Split.TRAIN, Split.VALID):
        assert history.value(1, split, "Box loss") == pytest.approx(float(expected))
        assert history.value(1, split, "share") == 0.5
    log = (tmp_path / "valid/epoch-1/Box_loss.log").read_text().split()
    assert log[2] == "NaN,0"  # the batch without boxes counts nothing


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (ScalarMetric("absent"), "metric 'absent': Detection has no attribute 'absent'"),
        (ScalarMetric("loss_box"), r"metric 'loss_box': the value must be one number; found shape \(2,\)"),
    ],
)
def test_missing_field_and_several_numbers_are_refused(metric, message):
    with pytest.raises(BuilderError, match=message):
        metric.measure(Detection(torch.ones(()), torch.ones(2), 2, 2))


def test_params_name_the_field_and_its_direction():
    [use] = FitConfig(metrics=[{"kind": "scalar", "field": "loss_box", "better": "highest"}]).metrics

    metric = build_metric(use)

    assert (metric.name, metric.better) == ("loss_box", Direction.HIGHEST)
    assert isinstance(use, Use)
