"""The loop.

Each epoch: the random state and the order of samples are set from (seed, epoch); every batch is a step
of the schedule, a forward and backward pass, and, where the accumulation window is full, a step of the
optimizer; then the valid split, the history, the checkpoint, and retention.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from stages.checkpoints import FileCheckpointer, Retention
from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Progress, Renderer
from stages.contracts.history import History, Split, Value
from stages.contracts.seeds import derived_seed
from stages.learner.meter import Meter, Registered
from stages.learner.state import State
from stages.optim import Window


class Loader(Protocol):
    """What `fit` iterates over, once an epoch: ours, or a `torch.utils.data.DataLoader`."""

    def __len__(self) -> int:
        """The number of batches."""

    def __iter__(self) -> Iterator[Any]:
        """The batches."""


@dataclass
class Parts:
    """What the builder put together."""

    state: State
    num_epochs: int
    seed: int
    device: torch.device
    window: Window
    metrics: dict[Split, list[Registered]]
    loggers: dict[Split, list[MetricLogger]]
    renderer: Renderer
    checkpointer: FileCheckpointer | None
    retention: Retention
    history: History = field(default_factory=History)


class Loop:
    """Runs the epochs that are left."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.state = parts.state
        self.progress = Progress(parts.num_epochs, units=_units(parts))

    def run(self, train: Loader, valid: Loader) -> nn.Module:
        """Train on *train* and validate on *valid* after each epoch; the trained model."""
        for loader in (train, valid):
            if not len(loader):
                raise BuilderError("a loader has no batches: both splits need at least one")
            if hasattr(loader, "set_device"):
                loader.set_device(self.parts.device)
        self.parts.renderer.start(self.progress)
        try:
            for epoch in range(self.state.epoch + 1, self.parts.num_epochs + 1):
                torch.manual_seed(derived_seed(self.parts.seed, epoch))
                self._train(train, epoch)
                self._validate(valid, epoch)
                self._finish(epoch)
        finally:
            self._close()
        model: nn.Module = self.state.model
        return model

    def _train(self, loader: Loader, epoch: int) -> None:
        state, window, model = self.state, self.parts.window, self.state.model.train()
        meter = self._begin(Split.TRAIN, loader, epoch)
        for batch in loader:
            rate = state.scheduler.step()
            step = model.train_step(batch)
            window.add(step.gradients, step.item.size)
            if window.full:
                state.update(window.take(), rate)
            self._measured(meter, step.item)
        if window.batches:
            state.update(window.take(), rate)
        self._end(meter)

    @torch.inference_mode()
    def _validate(self, loader: Loader, epoch: int) -> None:
        model = self.state.model.eval()
        meter = self._begin(Split.VALID, loader, epoch)
        for batch in loader:
            self._measured(meter, model.valid_step(batch))
        self._end(meter)

    def _begin(self, split: Split, loader: Loader, epoch: int) -> Meter:
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        meter = Meter(self.parts.metrics[split], self.parts.loggers[split], epoch)
        self.progress.split, self.progress.epoch = split, epoch
        self.progress.batch, self.progress.batches = 0, len(loader)
        self.progress.running = meter.values
        return meter

    def _measured(self, meter: Meter, item: Any) -> None:
        meter.measure(item)
        self.progress.batch += 1
        self.parts.renderer.step(self.progress)

    def _end(self, meter: Meter) -> None:
        for name, value in meter.numeric().items():
            self.parts.history.add(Value(self.progress.epoch, self.progress.split, name, value))

    def _finish(self, epoch: int) -> None:
        self.state.epoch = epoch
        for logger in (each for loggers in self.parts.loggers.values() for each in loggers):
            logger.flush()
        self.parts.renderer.epoch_end(self.progress, self.parts.history)
        if self.parts.checkpointer:
            self._save(self.parts.checkpointer)

    def _save(self, checkpointer: FileCheckpointer) -> None:
        checkpointer.save(self.state.epoch, self.state.checkpoint(self.parts.history))
        saved = checkpointer.saved()
        kept = self.parts.retention.keep([epoch for epoch in saved if epoch], self.parts.history)
        for epoch in set(saved) - kept:
            checkpointer.delete(epoch)

    def _close(self) -> None:
        self.parts.renderer.close()
        for logger in (each for loggers in self.parts.loggers.values() for each in loggers):
            logger.close()


def _units(parts: Parts) -> dict[str, str | None]:
    registered = [each for metrics in parts.metrics.values() for each in metrics]
    return {each.metric.name: each.metric.unit for each in registered}
