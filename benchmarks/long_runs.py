"""The cost of an epoch and of a step in long runs of a tiny model, and of publishing many log files."""

import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest import mock

import torch

from stages.contracts.events import Progress
from stages.contracts.history import History
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Mlp
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer
from stages.runs import HeartbeatRenderer, LogLedger, MetricEarlyStopping, publish

WINDOW = 50
"""Epochs before and after one whose median cost is reported."""


class Clock(NoRenderer):
    """Notes the time after each epoch, and after every *steps_apart* steps."""

    def __init__(self, steps_apart: int) -> None:
        super().__init__()
        self.epochs: list[float] = []
        self.steps: list[float] = []
        self._apart = steps_apart
        self._count = 0

    def step(self, progress: Progress) -> None:  # noqa: ARG002  the protocol's
        """Count a step."""
        self._count += 1
        if self._count % self._apart == 0:
            self.steps.append(time.process_time())

    def epoch_end(self, progress: Progress, history: History) -> None:  # noqa: ARG002  the protocol's
        """Note the time."""
        self.epochs.append(time.process_time())


def train(epochs: int, batches: int, *, steps_apart: int = 1 << 62) -> Clock:
    """Train a tiny model as `fit` does, with logs, checkpoints, retention, early stopping and a ledger."""
    torch.set_num_threads(1)
    loaders = DataLoaderBuilder(NormalizeBatcher()).batch_size(1)
    inputs, targets = torch.ones(batches, 4), torch.zeros(batches, dtype=torch.int64)
    clock = Clock(steps_apart)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builder = LearnerBuilder(folder).metrics(LossMetric(), AccuracyMetric()).num_epochs(epochs).seed(1)
        builder.devices(["cpu"]).with_file_checkpointer(NamedMpkGzFileRecorder()).renderer(clock)
        builder.early_stopping(MetricEarlyStopping(n_epochs=epochs))
        builder.with_progress_logger(HeartbeatRenderer(folder, epoch_ended=LogLedger(folder).add))
        learner = builder.build(Mlp((4,), 2, hidden_sizes=(2,)), Adam(), 1e-3)
        learner.fit(
            loaders.build(TensorDataset(inputs, targets)),
            loaders.build(TensorDataset(inputs[:1], targets[:1])),
        )
    return clock


def epoch_costs(epochs: list[int]) -> list[float]:
    """Return the median seconds of an epoch around each of *epochs*, in one run."""
    clock = train(max(epochs) + WINDOW, 2)
    costs = [after - before for before, after in pairwise(clock.epochs)]
    return [median(costs[max(0, epoch - WINDOW) : epoch + WINDOW]) for epoch in epochs]


def step_costs(steps: int) -> list[float]:
    """Return the seconds of a step in each tenth of an epoch of *steps* steps; medians over hundredths."""
    times = train(1, steps, steps_apart=steps // 100).steps
    costs = [(after - before) / (steps // 100) for before, after in pairwise(times)]
    return [median(costs[start : start + 10]) for start in range(0, len(costs) - 8, 10)]


def publishing_cost(files: int) -> tuple[int, float, float]:
    """Return the calls of `os.fsync` and the seconds to publish *files* log files, and to do so once more."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "store" / "train"
        for number in range(files):
            path = source / f"epoch-{number // 7}" / f"{number % 7}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("0.5,1\n")
        os.sync()
        with mock.patch("os.fsync", wraps=os.fsync) as fsync:
            began = time.process_time()
            publish({source: Path(name) / "train"})
            calls, seconds = fsync.call_count, time.process_time() - began
        began = time.process_time()
        publish({source: Path(name) / "train"})
        return calls, seconds, time.process_time() - began
