"""A StopIteration raised by the user's code ends the run instead of the epoch."""

import traceback

import pytest
import torch
from torch import nn

from stages.contracts.errors import CheckpointError
from stages.data import DataLoaderBuilder, MapperDataset, NormalizeBatcher
from stages.learner import EvaluatorBuilder, confusion_matrix
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, Lbfgs, NonFinite
from stages.renderers import NoRenderer

THIRD = 2


def exhausted(*_):
    return next(iter(()))


class Net(ClassificationStep, nn.Sequential):
    """Raises StopIteration in one of its methods."""

    failing = ""

    def train_step(self, batch):
        return exhausted() if self.failing == "train_step" else super().train_step(batch)

    def valid_step(self, batch):
        return exhausted() if self.failing == "valid_step" else super().valid_step(batch)

    def forward(self, inputs):
        return exhausted() if self.failing == "forward" else super().forward(inputs)


class ExhaustedMetric(LossMetric):
    def measure(self, output):
        return exhausted(output)


class ExhaustedBatcher(NormalizeBatcher):
    def batch(self, items):
        return exhausted(items)


class ExhaustedDataset(torch.utils.data.Dataset):
    """Raises StopIteration at its third sample."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return exhausted() if index == THIRD else (torch.zeros(4), 0)


def net(failing=""):
    model = Net(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model.failing = failing
    return model


def own_loader(dataset, batcher=None, workers=0):
    return DataLoaderBuilder(batcher or NormalizeBatcher()).batch_size(8).num_workers(workers).build(dataset)


def torch_loader(workers=0):
    return torch.utils.data.DataLoader(ExhaustedDataset(), 2, num_workers=workers)


BUILDERS = {
    "one device": lambda builder: builder,
    "skipped batches": lambda builder: builder.non_finite(NonFinite(kind="skip")),
}
LOADERS = {
    "batcher": lambda train: own_loader(train.dataset, ExhaustedBatcher()),
    "batcher in a worker": lambda train: own_loader(train.dataset, ExhaustedBatcher(), workers=1),
    "transform": lambda train: own_loader(MapperDataset(train.dataset, exhausted)),
    "transform in a worker": lambda train: own_loader(MapperDataset(train.dataset, exhausted), workers=1),
    "dataset of a torch loader": lambda train: torch_loader(),
    "dataset of a torch loader in a worker": lambda train: torch_loader(workers=1),
}


def assert_names_the_users_frame(error, directory):
    """Check *error*, and release the iterators of its frames: a garbage collection waits 5 s for a worker."""
    assert "in exhausted\n" in "".join(traceback.format_exception(error))
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    assert not list(directory.glob("checkpoint/trainer-*"))


@pytest.mark.parametrize("failing", ["train_step", "valid_step", "forward"])
@pytest.mark.parametrize("change", BUILDERS.values(), ids=BUILDERS)
def test_stop_iteration_in_a_step_ends_the_run(failing, change, start, tiny, tmp_path):
    learner = change(start(tmp_path)).build(net(failing), Adam(), 0.1)

    with pytest.raises(StopIteration) as raised:
        learner.fit(*tiny[1]())

    assert_names_the_users_frame(raised.value, tmp_path)


def test_stop_iteration_in_an_evaluation_of_lbfgs_ends_the_run(start, tiny, tmp_path):
    learner = start(tmp_path).build(net("train_step"), Lbfgs(kind="lbfgs"), 0.1)

    with pytest.raises(StopIteration) as raised:
        learner.fit(*tiny[1]())

    assert_names_the_users_frame(raised.value, tmp_path)


def test_stop_iteration_in_a_metric_ends_the_run(start, tiny, tmp_path):
    metric = ExhaustedMetric()
    metric.name = "Exhausted"

    with pytest.raises(StopIteration) as raised:
        start(tmp_path).metrics(metric).build(net(), Adam(), 0.1).fit(*tiny[1]())

    assert_names_the_users_frame(raised.value, tmp_path)


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_stop_iteration_in_the_data_ends_the_run(make, split, start, tiny, tmp_path):
    train, valid = tiny[1]()
    failing = make(train)
    loaders = (failing, valid) if split == "train" else (train, failing)

    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        start(tmp_path).build(net(), Adam(), 0.1).fit(*loaders)

    assert_names_the_users_frame(raised.value, tmp_path)


def test_stop_iteration_ends_an_evaluation_and_a_confusion_matrix(tiny, tmp_path):
    _, valid = tiny[1]()
    evaluator = EvaluatorBuilder(tmp_path).metrics(LossMetric()).device("cpu").build(net("valid_step"))

    with pytest.raises(StopIteration):
        evaluator.eval("mine", valid)
    with pytest.raises(StopIteration):
        confusion_matrix(net("valid_step"), valid, seed=1, should_stop=lambda: False)


class ShortLoader(list):
    """Announces more batches than it has."""

    def __len__(self):
        return super().__len__() + 1


def test_epoch_of_a_loader_that_ends_early_is_complete(start, tiny, tmp_path):
    train, valid = tiny[1]()

    learner = start(tmp_path, 2).build(net(), Adam(), 0.1)
    learner.fit(ShortLoader(train), ShortLoader(valid))

    assert learner.epoch == 2


def test_loader_shorter_than_the_checkpoints_position_is_rejected(start, tiny, tmp_path):
    train, valid = tiny[1]()

    class Stopping(NoRenderer):
        def step(self, progress):
            progress.interrupter.stop() if progress.batch == 3 else None

    start(tmp_path, 2).renderer(Stopping()).build(net(), Adam(), 0.1).fit(list(train), list(valid))
    resumed = start(tmp_path, 2).checkpoint("auto").build(net(), Adam(), 0.1)

    with pytest.raises(CheckpointError, match="ended after 2 batches.*resumes after batch 3"):
        resumed.fit(list(train)[:2], list(valid))
