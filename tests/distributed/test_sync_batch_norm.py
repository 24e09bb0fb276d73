"""Batch norms that use the statistics of all ranks, by choice."""

import importlib
import os

import pytest
import torch
from ranks import run_ranks
from run_files import read_run_files
from torch import nn

from stages.contracts.errors import BuilderError
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.distributed import check_synchronization, synchronize_batch_norms
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, Sgd
from stages.records import (
    NamedMpkBytesRecorder,
    NamedMpkGzFileRecorder,
    fields_unlike_burn,
    record_of,
    skeleton_of,
)
from stages.renderers import NoRenderer

TOLERANCE = 1e-5


class Net(ClassificationStep, nn.Sequential):
    pass


def build_net():
    torch.manual_seed(3)
    return Net(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    )


def loaders(train=75, valid=29, batch_size=16):
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(batch_size)
    splits = []
    for count in (train, valid):
        inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(count))
        splits.append(TensorDataset(inputs, inputs[:, :3].argmax(1)))
    return builder.shuffle(5).build(splits[0]), builder.build(splits[1])


def start(directory):
    builder = LearnerBuilder(directory).num_epochs(2).seed(1).devices(["cpu"]).num_threads(1)
    return (
        builder.metrics(LossMetric()).with_file_checkpointer(NamedMpkGzFileRecorder()).renderer(NoRenderer())
    )


class SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over all ranks, whose gradient is the sum of the gradients of all ranks."""

    @staticmethod
    def forward(ctx, tensor):
        total = tensor.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return SumOverRanks.forward(ctx, gradient)


class BatchNormOfRanks(nn.SyncBatchNorm):
    """What torch's class computes on accelerators, also on a CPU."""

    def forward(self, inputs):
        if not self.training:
            return super().forward(inputs)
        counts = torch.tensor([float(len(inputs))])
        sums = SumOverRanks.apply(torch.cat([inputs.sum(0), inputs.square().sum(0), counts]))
        (mean, square), count = sums[:-1].view(2, -1) / sums[-1], sums[-1].detach()
        variance = square - mean.square()
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        return (inputs - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


def fit(directory, change=lambda builder: builder, sizes=(75, 29, 16)):
    """Train with the stand-in for torch's class; return the losses and the state."""
    if "RANK" in os.environ:
        nn.SyncBatchNorm = BatchNormOfRanks
        importlib.import_module("stages.distributed.data_parallel").UNSYNCHRONIZED_DEVICES = ()
    learner = change(start(directory).sync_batch_norm()).build(build_net(), Sgd(), 0.5)
    try:
        learner.fit(*loaders(*sizes))
    except BuilderError as error:
        return str(error)
    columns = learner.history.columns().items()
    losses = {split: list(column.values) for (split, _), column in columns}
    return losses, {name: tensor.tolist() for name, tensor in learner.model.state_dict().items()}


def assert_is_close(found, expected):
    assert found[0].keys() == expected[0].keys()
    assert found[1].keys() == expected[1].keys()
    for index in range(2):
        for name, values in expected[index].items():
            assert torch.allclose(
                torch.tensor(found[index][name]), torch.tensor(values), rtol=TOLERANCE, atol=TOLERANCE
            ), name


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("window", [1, 3])
def test_ranks_train_a_model_with_batch_norms_as_one_process_does(window, size, tmp_path):
    """The batches have 16 samples, and the last one of an epoch 11, so the shares of the ranks differ."""

    def change(builder):
        return builder.grads_accumulation(window)

    one = fit(tmp_path / "one", change)

    found = run_ranks(fit_with_window, size, tmp_path / "ranks", window)

    assert found.count(found[0]) == size
    assert_is_close(found[0], one)


def fit_with_window(directory, window):
    return fit(directory, lambda builder: builder.grads_accumulation(window))


def fit_small_batch(directory):
    return fit(directory, sizes=(17, 4, 16))


def test_batch_with_fewer_samples_than_ranks_is_an_error_on_all_ranks(tmp_path):
    found = run_ranks(fit_small_batch, 2, tmp_path)

    assert all("a batch has 1 sample for 2 ranks" in each for each in found), found


def build_on_cpu(directory):
    try:
        start(directory).sync_batch_norm().build(build_net(), Adam(), 0.05)
    except BuilderError as error:
        return str(error)
    return ""


def test_several_ranks_on_a_cpu_are_rejected_at_build(tmp_path):
    found = run_ranks(build_on_cpu, 2, tmp_path)

    assert all("sync_batch_norm needs an accelerator for each rank" in each for each in found), found


def test_one_device_has_the_same_files_with_and_without(tmp_path):
    for directory, change in (("without", lambda b: b), ("with", lambda b: b.sync_batch_norm())):
        model = build_net()
        change(start(tmp_path / directory)).build(model, Adam(), 0.05).fit(*loaders())
        assert type(model[1]) is nn.BatchNorm1d

    assert read_run_files(tmp_path / "with") == read_run_files(tmp_path / "without")


def build_images():
    shared = nn.BatchNorm2d(4, momentum=None)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ModuleDict({"first": shared, "same": shared}),
        nn.Sequential(nn.BatchNorm2d(4, eps=1e-3, affine=False), shared),
        nn.BatchNorm3d(4, track_running_stats=False),
    )


def describe(model):
    """Return the names of modules and parameters, and the record."""
    layout = skeleton_of(model)
    record = record_of(model, model.state_dict(), layout)
    names = [name for name, _ in model.named_modules()]
    return names, layout, NamedMpkBytesRecorder().record(record), fields_unlike_burn(model)


def test_synchronized_norms_have_the_names_tensors_and_records_of_batch_norms():
    model = build_images()
    before, tensors = describe(model), [*model.parameters(), *model.buffers()]

    synchronize_batch_norms(model)

    assert [type(each) for each in (model[1]["first"], *model[2], model[3])] == [nn.SyncBatchNorm] * 4
    assert model[1]["first"] is model[1]["same"] is model[2][1]
    assert (model[1]["first"].momentum, model[2][0].eps) == (None, 1e-3)
    assert all(map(lambda a, b: a is b, [*model.parameters(), *model.buffers()], tensors))
    assert describe(model) == before


class ScaledNorm(nn.BatchNorm1d):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    "model", [nn.Sequential(ScaledNorm(4)), nn.BatchNorm1d(4)], ids=["subclass", "model"]
)
def test_norms_whose_methods_would_be_lost_are_rejected(model):
    with pytest.raises(BuilderError, match="sync_batch_norm cannot replace (0|the model)"):
        check_synchronization(model, torch.device("meta"))
