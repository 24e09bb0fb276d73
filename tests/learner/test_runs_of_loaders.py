"""A run with augmentation or buckets has the same bytes for any number of workers, and after a resume."""

from functools import partial

import numpy as np
import pytest
import torch
from long_tests import long
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn

from stages import data
from stages.contracts.outputs import ClassificationOutput
from stages.learner import LearnerBuilder
from stages.learner.from_params import build_loaders
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep, Mlp
from stages.optim import Adam, Scheduler
from stages.params.fit_params import FitConfig
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

AUGMENT = [
    {"kind": "random_crop", "padding": 2},
    {"kind": "horizontal_flip"},
    {"kind": f"{__name__}:add_noise", "scale": 2.0},
]


def add_noise(image, scale):
    return image + scale * np.random.rand()


def run(directory, workers=0, stop_after=None, augment=AUGMENT):
    """Train two epochs of 5 batches, with 2 of validation, in *directory* from the newest checkpoint."""
    images = np.random.default_rng(0).integers(0, 256, (50, 1, 6, 5), dtype=np.uint8)
    prepared = data.prepare(data.split(data.Arrays(images, np.arange(50) % 3), 0.25, 0))
    config = FitConfig(num_workers=workers, batch_size=8, augment=augment)
    make_model = partial(Mlp, input_shape=(1, 6, 5), num_outputs=3, hidden_sizes=(8,))
    return train(directory, config, prepared, make_model, stop_after)


def train(directory, config, prepared, make_model, stop_after=None):
    """Train two epochs with the loaders of *config*; return the files of the run."""
    builder = LearnerBuilder(directory).num_epochs(2).devices(["cpu"]).seed(1)
    builder.metrics(LossMetric(), AccuracyMetric())
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto")
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    torch.manual_seed(3)
    learner = builder.build(make_model(), Adam(), Scheduler(0.05))
    learner.fit(*build_loaders(config, prepared))
    return read_run_files(directory)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("uninterrupted"))


@pytest.mark.parametrize("workers", [0, 2, long(1), long(4)])
def test_augmented_run_that_was_stopped_within_an_epoch_equals_uninterrupted_run(
    workers, uninterrupted, tmp_path
):
    stopped = run(tmp_path, workers, stop_after=10)
    resumed = run(tmp_path, workers)

    assert stopped != uninterrupted
    assert resumed == uninterrupted


def test_valid_split_is_not_augmented(tmp_path):
    images = np.arange(40 * 12, dtype=np.uint8).reshape(40, 1, 3, 4)
    prepared = data.prepare(data.Splits(*[data.Arrays(images, np.arange(40) % 2)] * 2))
    config = FitConfig(num_workers=0, batch_size=40, augment=[{"kind": "vertical_flip", "p": 1}])

    for loader in build_loaders(config, prepared):
        (batch,) = loader
        (plain,) = build_loaders(FitConfig(num_workers=0, batch_size=40), prepared)[loader.order.seed is None]
        flipped = plain.inputs.flip(2)
        assert batch.inputs.equal(plain.inputs if loader.order.seed is None else flipped)


class TextNet(ClassificationStep, nn.Module):
    """A classifier of the mean of the embedded tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.linear = nn.Linear(8, 3)

    def forward(self, inputs, mask):
        weights = mask / mask.sum(1, keepdim=True)
        return self.linear((self.embedding(inputs) * weights[..., None]).sum(1))

    def forward_classification(self, batch):
        logits = self(batch.inputs, batch.mask)
        return ClassificationOutput(self.loss(logits, batch.targets), logits, batch.targets)


def run_texts(directory, workers=0, stop_after=None):
    """Train two epochs on padded rows of ids in *directory*, from the newest checkpoint."""
    generator = np.random.default_rng(0)
    rows = generator.integers(1, 9, (50, 12)) * (np.arange(12) < generator.integers(1, 13, 50)[:, None])
    prepared = data.prepare(data.split(data.Arrays(rows, rows.sum(1) % 3), 0.25, 0))
    config = FitConfig(num_workers=workers, batch_size=8, batcher="pad", bucket=True)
    return train(directory, config, prepared, TextNet, stop_after)


@pytest.mark.parametrize("workers", [long(0), 2])
def test_run_with_buckets_that_was_stopped_within_an_epoch_equals_uninterrupted_run(workers, tmp_path):
    uninterrupted = run_texts(tmp_path / "uninterrupted")

    stopped = run_texts(tmp_path / "run", workers, stop_after=10)
    resumed = run_texts(tmp_path / "run", workers)

    assert stopped != uninterrupted
    assert resumed == uninterrupted
