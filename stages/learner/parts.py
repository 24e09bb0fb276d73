"""What the builder puts together and the loop drives."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from stages.checkpoints import FileCheckpointer, Retention
from stages.contracts.events import MetricLogger, Progress, Renderer, Shown
from stages.contracts.history import History, Split
from stages.contracts.interrupter import Interrupter
from stages.contracts.seeds import derived_seed
from stages.learner.meter import Meter, Registered
from stages.learner.replicas import Replicas
from stages.learner.state import State, history_of
from stages.learner.stopping import EarlyStopping
from stages.optim import Guard, Window

log = logging.getLogger(__name__)


class Renderers:
    """Several renderers as one."""

    def __init__(self, renderers: Sequence[Renderer]) -> None:
        self.renderers = tuple(renderers)

    def start(self, progress: Progress) -> None:
        """Tell each."""
        for each in self.renderers:
            each.start(progress)

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Tell each."""
        for each in self.renderers:
            each.log(split, epoch, name, value)

    def step(self, progress: Progress) -> None:
        """Tell each."""
        for each in self.renderers:
            each.step(progress)

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Tell each."""
        for each in self.renderers:
            each.epoch_end(progress, history)

    def close(self) -> None:
        """Tell each."""
        for each in self.renderers:
            each.close()


@dataclass
class Watchers:
    """What is measured, and who is told."""

    metrics: dict[Split, list[Registered]]
    loggers: dict[Split, list[MetricLogger]]
    telemetry: dict[Split, list[MetricLogger]]
    """Where metrics of the clock and the machine are logged."""
    renderer: Renderer

    def meter(self, split: Split, epoch: int) -> Meter:
        """Measures one epoch of *split*."""
        metrics = [
            (each, (self.telemetry if each.telemetry else self.loggers)[split])
            for each in self.metrics[split]
        ]
        return Meter(metrics, self.renderer, split, epoch)

    def shown(self) -> dict[str, Shown]:
        """How each metric is shown; text metrics first."""
        registered = [each for metrics in self.metrics.values() for each in metrics]
        return {each.metric.name: each.shown for each in sorted(registered, key=lambda each: each.numeric)}

    def flush(self) -> None:
        """Have every logger write what it has."""
        for logger in self._loggers():
            logger.flush()

    def close(self) -> None:
        """Close everything, the renderer first so that the terminal is whole again."""
        with ExitStack() as stack:  # each is closed, whatever the others raise
            for logger in self._loggers():
                stack.callback(logger.close)
            stack.callback(self.renderer.close)

    def _loggers(self) -> list[MetricLogger]:
        return [each for kind in (self.loggers, self.telemetry) for split in Split for each in kind[split]]


@dataclass
class Parts:
    """Everything a run is made of."""

    state: State
    num_epochs: int
    seed: int | None
    """None until it is asked for, where nobody named one."""
    replicas: Replicas
    window: Window
    guard: Guard
    watchers: Watchers
    interrupter: Interrupter
    checkpointer: FileCheckpointer | None
    retention: Retention
    stopping: EarlyStopping | None
    history: History = field(default_factory=History)
    open_epoch: int | None = None
    """The epoch that has begun and is not done; then the weights are those of no checkpoint."""

    def restore(self, epoch: int) -> None:
        """Go on from the checkpoint of *epoch*. Raises `CheckpointError` if it is not there or not whole."""
        if self.checkpointer is None:
            return
        log.info("Restoring checkpoint %d from %s", epoch, self.checkpointer.directory)
        checkpoint = self.checkpointer.restore(epoch)
        self.state.restore(checkpoint)
        self.history = history_of(checkpoint)
        self.window.load_state_dict(checkpoint.trainer["window"])
        self.guard.load_state_dict(checkpoint.trainer["guard"])
        self._take_seed(checkpoint.trainer["seed"])
        self.replicas.synchronize()

    def _take_seed(self, seed: int) -> None:
        """Go on with the checkpoint's *seed*, unless the builder was given one."""
        if self.seed is None:
            self.seed = seed
        elif seed != self.seed and self.state.epoch:
            log.warning("the seed is %d and was %d: the run will not equal an unbroken one", self.seed, seed)

    def derived_seed(self, *path: int | str) -> int:
        """A seed for what *path* names; of a run without a seed, from torch's own."""
        if self.seed is None:
            self.seed = torch.initial_seed()
        return derived_seed(self.seed, *path)

    def save(self) -> None:
        """Write a checkpoint of the epoch that is done.

        Those that no rule keeps are removed, and those of later epochs, which are of another run.
        """
        if self.checkpointer is None:
            return
        log.info("Saving checkpoint %d to %s", self.state.epoch, self.checkpointer.directory)
        trainer = {
            "history": [[v.epoch, v.split.value, v.metric, v.value] for v in self.history],
            "window": self.window.state_dict(),
            "guard": self.guard.state_dict(),
            "seed": torch.initial_seed() if self.seed is None else self.seed,
        }
        self.checkpointer.save(self.state.epoch, self.state.checkpoint(trainer))
        saved = self.checkpointer.saved()
        own = [epoch for epoch in saved if 0 < epoch <= self.state.epoch]
        kept = self.retention.keep(own, self.history) | {self.state.epoch}
        for epoch in sorted(set(saved) - kept):
            log.info("Removing checkpoint %d", epoch)
            self.checkpointer.delete(epoch)
