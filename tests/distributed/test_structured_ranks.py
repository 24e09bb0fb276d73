"""Several ranks train on samples of any structure what one process trains."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from long_tests import covering_cases
from ranks import run_ranks
from torch import nn

from stages import data
from stages.contracts.outputs import ClassificationOutput, DetectionOutput, RegressionOutput, TrainOutput
from stages.data import Arrays, DataLoaderBuilder, HorizontalFlip, NormalizeBatcher, Ragged
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric, MeanAveragePrecisionMetric, MseMetric
from stages.metrics.from_torchmetrics import mean_iou
from stages.models import ClassificationStep, UNet, backward
from stages.renderers import NoRenderer

COUNT = 23
IMAGES = np.random.default_rng(0).integers(0, 255, (COUNT, 1, 8, 8), dtype=np.uint8)
BOXES = Ragged.of([[[1, 1, 4 + row % 3, 5]] * (row % 3) for row in range(COUNT)], (4,))


class OneBox(nn.Sequential):
    """A model that predicts a box for each image, whose loss is a mean over images."""

    def valid_step(self, batch):
        boxes = self(batch.inputs)
        targets = [
            {"boxes": rows, "labels": torch.zeros(len(rows), dtype=torch.int64)} for rows in batch.targets
        ]
        losses = [F.l1_loss(box.expand_as(rows), rows, reduction="sum")
                  for box, rows in zip(boxes, batch.targets, strict=True)]  # fmt: skip
        names = {"scores": torch.ones(1), "labels": torch.zeros(1, dtype=torch.int64)}
        predictions = [{"boxes": box[None]} | names for box in boxes]
        return DetectionOutput(torch.stack(losses).mean(), predictions, targets)

    def train_step(self, batch):
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)


class Pixels(ClassificationStep, nn.Conv2d):
    """A model of the class of each pixel."""


class Views(nn.Sequential):
    """A model whose two views of an image become similar."""

    def valid_step(self, batch):
        first, second = map(self, batch.inputs)
        return RegressionOutput(F.mse_loss(first, second), first, second, first.numel())

    train_step = OneBox.train_step


class Heads(nn.ModuleDict):
    """A model with two inputs, and a class and a number as targets."""

    def valid_step(self, batch):
        features = batch.inputs["image"].flatten(1) + batch.inputs["size"][:, None]
        kinds, numbers = (self[name](features) for name in ("kind", "number"))
        loss = F.cross_entropy(kinds, batch.targets["kind"])
        loss = loss + F.mse_loss(numbers[:, 0], batch.targets["number"])
        return ClassificationOutput(loss, kinds, batch.targets["kind"])

    train_step = OneBox.train_step


MASKS = (IMAGES[:, 0] > 99).astype(np.int16)
NUMBERS = np.linspace(-1, 1, COUNT)
CASES = {
    "masks": (Arrays(IMAGES, MASKS), lambda: UNet((1, 8, 8), 2, channels=(2, 4)), mean_iou),
    "ignored pixels": (
        Arrays(IMAGES, np.where(IMAGES[:, 0] % 7 < np.arange(COUNT)[:, None, None] % 8, -100, MASKS)),
        lambda: Pixels(1, 2, 1),
        mean_iou,
    ),
    "boxes": (
        Arrays(IMAGES, Ragged(BOXES.values.astype(np.float32), BOXES.ends)),
        lambda: OneBox(nn.Flatten(), nn.Linear(64, 4)),
        lambda _: MeanAveragePrecisionMetric(),
    ),
    "views": (Arrays(IMAGES), lambda: Views(nn.Flatten(), nn.Linear(64, 4)), lambda _: MseMetric()),
    "several": (
        Arrays({"image": IMAGES, "size": NUMBERS}, {"kind": np.arange(COUNT) % 3, "number": NUMBERS}),
        lambda: Heads({"kind": nn.Linear(64, 3), "number": nn.Linear(64, 1)}),
        lambda _: AccuracyMetric(),
    ),
}
BATCHERS = {"several": NormalizeBatcher({"image": 100.0, "size": 0.0}, {"image": 50.0, "size": 1.0})}


WINDOWS = {"no window": 1, "windows": 2}


def train(directory, name, window):
    """Train for two epochs with an update for each *window* of batches; return weights and metrics."""
    arrays, build, build_metric = CASES[name]
    samples = data.dataset(data.to_columns(arrays, "the data"))
    loader = DataLoaderBuilder(BATCHERS.get(name, NormalizeBatcher(100.0, 50.0))).batch_size(5).shuffle(1)
    loader.augment([HorizontalFlip()]).views(2 if name == "views" else 1)
    torch.manual_seed(3)
    model = build()
    builder = (
        LearnerBuilder(directory)
        .num_epochs(2)
        .seed(1)
        .devices(["cpu"])
        .num_threads(1)
        .grads_accumulation(window)
    )
    builder.metrics(LossMetric(), build_metric(2)).renderer(NoRenderer())
    learner = builder.build(model, torch.optim.SGD(model.parameters(), 0.01), 0.01)
    learner.fit(loader.build(samples), loader.build(samples))
    values = {(value.split, value.metric): value.value for value in learner.history.at(2)}
    return {key: value.numpy() for key, value in model.state_dict().items()}, values


@pytest.mark.parametrize(("name", "window"), covering_cases(list(CASES), WINDOWS, strength=1))
def test_two_ranks_train_what_one_process_trains(name, window, tmp_path):
    alone, values = train(tmp_path / "alone", name, window)

    for weights, ours in run_ranks(train, 2, tmp_path / "ranks", name, window):
        assert ours == pytest.approx(values, rel=1e-4)
        assert all(np.allclose(weights[key], alone[key], atol=1e-5) for key in alone)
