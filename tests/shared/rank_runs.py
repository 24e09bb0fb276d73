"""Runs of a small model that tests of ranks compare, in one process or on several ranks."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, default_collate

from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.distributed import rank_group
from stages.learner import FrozenNorms, LearnerBuilder, Unfreeze
from stages.metrics import (
    AccuracyMetric,
    AurocMetric,
    FBetaScoreMetric,
    LearningRateMetric,
    LossMetric,
    TorchMetric,
)
from stages.models import ClassificationStep
from stages.optim import Adam, ClipByGlobalNorm, Ema, NonFinite
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer

TOLERANCE = 1e-5
MAX_GAP = 2
"""The most steps between two exchanges of ranks that may stop: they stop after at most 2 x `MAX_GAP`."""
STOP_AT = 10
STOPPED_EPOCH = 160
"""Samples of an epoch of 20 steps, in which ranks that ask to stop in step `STOP_AT` stop."""


class Net(ClassificationStep, nn.Sequential):
    pass


def build_net(dropout=0.0, *, norm=False):
    torch.manual_seed(3)
    layers = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Dropout(dropout), nn.ReLU()]
    return Net(*layers, nn.Linear(8, 3))


def dataset(count):
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 4, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loaders(train=77, valid=29, batch_size=16):
    builder = DataLoaderBuilder(NormalizeBatcher()).batch_size(batch_size)
    return builder.shuffle(5).build(dataset(train)), builder.build(dataset(valid))


def torch_loaders(train=77, valid=29, batch_size=16):
    return [TorchLoader(dataset(count), batch_size) for count in (train, valid)]


def shuffled_loaders(train=77, valid=29, batch_size=16):
    return [TorchLoader(dataset(count), batch_size, shuffle=True) for count in (train, valid)]


class NoisyStream(IterableDataset):
    """Samples without a length, with noise of the global generators; it saves its position."""

    def __init__(self, count):
        self.samples, self.position = dataset(count), 0

    def __iter__(self):
        while self.position < len(self.samples):
            inputs, target = self.samples[self.position]
            self.position += 1
            yield inputs + 0.1 * torch.randn(4), target
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def center(items):
    """Return a batch whose inputs have the mean 0, with noise."""
    inputs, targets = default_collate(items)
    return inputs - inputs.mean(0) + 0.1 * torch.randn(inputs.shape), targets


def centered_loaders(train=77, valid=29, batch_size=16):
    builder = DataLoaderBuilder(center).batch_size(batch_size)
    return builder.shuffle(5).build(dataset(train)), builder.build(dataset(valid))


def stream_loaders(train=77, valid=29, batch_size=16):
    return TorchLoader(NoisyStream(train), batch_size), loaders(train, valid, batch_size)[1]


def start(directory, epochs=2):
    metrics = LossMetric(), AccuracyMetric(), LearningRateMetric()
    builder = LearnerBuilder(directory).num_epochs(epochs).seed(1).devices(["cpu"]).num_threads(1)
    builder.metrics(*metrics).with_file_checkpointer(NamedMpkGzFileRecorder())
    return builder.renderer(PlainRenderer())


def f1_score_of_torchmetrics():
    from torchmetrics.classification import MulticlassF1Score  # takes longer to import than torch

    return TorchMetric(MulticlassF1Score(num_classes=3))


CHANGES = {
    "plain": lambda builder: builder,
    "clipping": lambda builder: builder.grad_clipping(ClipByGlobalNorm(max_norm=0.1)),
    "window of 3": lambda builder: builder.grads_accumulation(3),
    "carried window": lambda builder: builder.grads_accumulation(3, leftover="carry"),
    "dropped window": lambda builder: builder.grads_accumulation(3, leftover="drop"),
    "summed window": lambda builder: builder.grads_accumulation(2, reduction="sum"),
    "summed and carried window": lambda builder: builder.grads_accumulation(
        3, reduction="sum", leftover="carry"
    ),
    "skip": lambda builder: builder.non_finite(NonFinite(kind="skip")),
    "averaged weights": lambda builder: builder.average_weights(Ema(decay=0.9)),
    "hooks": lambda builder: builder.hooks(Unfreeze(r"^0\.", epoch=2), FrozenNorms()),
    "more metrics": lambda builder: builder.metrics(AurocMetric(), FBetaScoreMetric()),
    "a metric of torchmetrics": lambda builder: builder.metrics(f1_score_of_torchmetrics()),
    "torch's loader": lambda builder: builder,
    "torch's shuffled loader": lambda builder: builder,
    "a batcher of whole batches": lambda builder: builder,
}
LOADERS = {
    "torch's loader": torch_loaders,
    "torch's shuffled loader": shuffled_loaders,
    "a stream": stream_loaders,
    "a batcher of whole batches": centered_loaders,
}
"""Loaders by the name of a change; `loaders` for all others."""
SIZES = {"usual": (77, 29, 16), "a few samples": (3, 2, 3), "batches of one": (5, 3, 1)}


def fit(directory, change="plain", sizes=(77, 29, 16), strategy="auto"):
    """Train two epochs on loaders of *sizes*: train samples, valid samples, and the batch size."""
    learner = CHANGES[change](start(directory).strategy(strategy)).build(build_net(), Adam(), 0.05)
    learner.fit(*LOADERS.get(change, loaders)(*sizes))
    return outcome(learner)


def outcome(learner):
    """Return the history and the weights as plain values."""
    columns = learner.history.columns().items()
    history = {f"{split} {name}": list(column.values) for (split, name), column in columns}
    weights = [gather(parameter).tolist() for parameter in learner.model.parameters()]
    return history, weights


def gather(parameter):
    """Return the whole of *parameter*, which ranks may have sharded."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def assert_equals_one_process(found, one):
    history, weights = found
    assert history.keys() == one[0].keys()
    for name, values in one[0].items():
        assert history[name] == pytest.approx(values, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True), name
    assert all(
        torch.allclose(torch.tensor(a), torch.tensor(b), atol=TOLERANCE)
        for a, b in zip(weights, one[1], strict=True)
    )


class Stopping(Net):
    """Asks to stop in a training step."""

    interrupter = None
    steps = 0
    stop_at = 0

    def train_step(self, batch):
        self.steps += 1
        if self.steps == self.stop_at:
            self.interrupter.stop()
        return super().train_step(batch)


def start_in_parts(directory, strategy):
    """Return a builder for 3 epochs from the newest checkpoint; its ranks agree to stop after a few steps."""
    if "RANK" in os.environ:  # and not the process of the tests
        rank_group.MAX_GAP = MAX_GAP
    return start(directory, 3).strategy(strategy).checkpoint("auto")


def fit_in_parts(directory, stops=(), dropout=0.3, window=1, strategy="auto", change="plain", kind=Stopping):
    """Train 3 epochs; stop at each of *stops*, (rank, step), and resume."""
    rank, results = int(os.environ.get("RANK", "0")), []
    for stop in (*stops, None):
        builder = start_in_parts(directory, strategy).grads_accumulation(window)
        model = kind(*build_net(dropout, norm=dropout > 0))
        model.interrupter = builder.interrupter()
        if stop is not None and stop[0] == rank:
            model.stop_at = stop[1]
        learner = builder.build(model, Adam(), 0.05)
        learner.fit(*LOADERS.get(change, loaders)(STOPPED_EPOCH, 29, 8))
        results.append((learner.resumed, learner.interrupted))
    return results, outcome(learner)


def stop_within_epoch(directory, strategy="auto", change="plain"):
    """Train about `STOP_AT` steps on the loaders of *change*, and save."""
    builder = start_in_parts(directory, strategy)
    model = Stopping(*build_net())
    model.interrupter, model.stop_at = builder.interrupter(), STOP_AT
    builder.build(model, Adam(), 0.05).fit(*LOADERS.get(change, loaders)(STOPPED_EPOCH, 29, 8))


def resume(directory, strategy="auto", change="plain"):
    """Train the rest of 3 epochs; return the position that the run resumed at, and its outcome."""
    builder = start_in_parts(directory, strategy)
    learner = builder.build(Stopping(*build_net()), Adam(), 0.05)
    learner.fit(*LOADERS.get(change, loaders)(STOPPED_EPOCH, 29, 8))
    return learner.resumed, outcome(learner)
