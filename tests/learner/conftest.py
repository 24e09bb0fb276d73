"""A model of a few weights with dropout, shuffling, and a smaller last batch."""

import pytest
import torch
from torch import nn

from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer


class Net(ClassificationStep, nn.Sequential):
    pass


def net():
    torch.manual_seed(3)
    return Net(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


def dataset(count):
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 4, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loaders(batch_size=8, workers=0):
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(batch_size).num_workers(workers)
    valid = builder.build(dataset(11))
    return builder.shuffle(5).build(dataset(30)), valid


@pytest.fixture
def start():
    """Return a function that returns a builder with two metrics on both splits, and checkpoints."""

    def start(directory, epochs=3):
        builder = LearnerBuilder(directory).num_epochs(epochs).seed(1).devices(["cpu"])
        for metric in (LossMetric(), AccuracyMetric()):
            builder.metric_train_numeric(metric).metric_valid_numeric(metric)
        return builder.renderer(PlainRenderer()).with_file_checkpointer(NamedMpkGzFileRecorder())

    return start


@pytest.fixture
def train(start):
    """Return a function that trains in a directory, after *checkpoint* if given, and returns the learner."""

    def train(directory, epochs=3, checkpoint=None, optimizer=None, lr=0.05, change=lambda b: b, **loading):
        builder = change(start(directory, epochs))
        if checkpoint is not None:
            builder.checkpoint(checkpoint)
        model = net()
        learner = builder.build(model, optimizer(model) if optimizer else Adam(), lr)
        learner.fit(*loaders(**loading))
        return learner

    return train


@pytest.fixture
def tiny():
    """Return the functions that build the model and the loaders."""
    return net, loaders
