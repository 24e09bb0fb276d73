"""The loop.

Each epoch: the random state and the order of samples are set from (seed, epoch); every batch is a step
of the schedule, a forward and backward pass, and, where the accumulation window is full, a step of the
optimizer; then the valid split, the history, the checkpoint, retention, and whether to stop early.
After any batch a checkpoint may be written, and a run that was stopped there goes on with the next one.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.events import Progress
from stages.contracts.history import Split, Value
from stages.contracts.outputs import TrainOutput
from stages.contracts.placement import move
from stages.learner.buffers import Buffers
from stages.learner.memory import keep_big_blocks
from stages.learner.meter import Meter
from stages.learner.parts import Parts
from stages.learner.pausing import Pausing
from stages.learner.randomness import set_random_state
from stages.learner.replicas import rounds

log = logging.getLogger(__name__)


class Loader(Protocol):
    """What `fit` iterates over, once an epoch: ours, or a `torch.utils.data.DataLoader`."""

    def __len__(self) -> int:
        """The number of batches."""

    def __iter__(self) -> Iterator[Any]:
        """The batches."""


def on_device(loader: Loader, device: torch.device) -> Iterable[Any]:
    """The batches of *loader* on *device*: our own loader puts them there, those of another are moved."""
    if hasattr(loader, "set_device"):
        loader.set_device(device)
        return loader
    return loader if device.type == "cpu" else (move(batch, device) for batch in loader)


class Loop:
    """Runs the epochs that are left."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.state = parts.state
        self._meter = parts.watchers.meter(Split.TRAIN, 0)
        self._buffers = Buffers(parts.state.model if parts.guard.rule.kind == "skip" else None)
        self.progress = Progress(
            parts.num_epochs,
            first_epoch=parts.state.epoch + 1,
            shown=parts.watchers.shown(),
            interrupter=parts.interrupter,
        )
        self._pausing = Pausing(parts, self.progress)

    def run(self, train: Loader, valid: Loader) -> nn.Module:
        """Train on *train* and validate on *valid* after each epoch; the trained model."""
        if not (len(train) and len(valid)):
            raise BuilderError("a loader has no batches: both splits need at least one")
        keep_big_blocks()
        parts, first = self.parts, self.state.epoch + 1
        try:
            parts.watchers.renderer.start(self.progress)
            self._pausing.prepare()
            if parts.place or not self._is_over():
                for epoch in range(first, parts.num_epochs + 1):
                    if not self._run_epoch(train, valid, epoch):
                        break
        finally:
            with suppress(Exception):  # what ended the run is what is told
                self._meter.drain()
            parts.watchers.close()
        model: nn.Module = self.state.model
        return model

    def _run_epoch(self, train: Loader, valid: Loader, epoch: int) -> bool:
        """Train, validate, save; whether the run goes on."""
        parts = self.parts
        parts.open_epoch = epoch
        set_random_state(parts.derived_seed(epoch))
        parts.replicas.copy_buffers()
        if parts.place is not None:
            parts.replicas.restore_buffers(parts.place.buffers)
        if parts.place is None or parts.place.split is Split.TRAIN:
            with parts.replicas.known_parameters():
                trained = self._train(train, epoch)
            if not trained:
                return False
        if not self._validate(valid, epoch):
            return False
        parts.open_epoch = None
        return self._finish(epoch)

    def _train(self, loader: Loader, epoch: int) -> bool:
        """One pass with updates; whether it went to its end."""
        log.info("Executing training step for epoch %d", epoch)
        state, window, guard, pausing = self.state, self.parts.window, self.parts.guard, self._pausing
        self.parts.replicas.train()
        meter, iteration = self._begin(Split.TRAIN, loader, epoch)
        rate = 0.0
        for step in self._computed(pausing.batches(partial(self._batches, loader))):
            iteration += 1
            rate = state.scheduler.step()
            if guard.passes(step, epoch, iteration):
                window.add(step.gradients, step.item.size)
                self._measured(meter, step.item, iteration, rate)
            else:
                self._buffers.put_back()
            del step  # or its gradients would live on beside those of the next
            if window.full:
                self._update(window.take(), rate, iteration)
            if pausing.stops_after(iteration):
                return False
        if (left := window.end_epoch()) is not None:
            self._update(left, rate, iteration)
        self._end(meter)
        return True

    @torch.no_grad()  # not inference_mode: what a model keeps from here, it may use in training
    def _validate(self, loader: Loader, epoch: int) -> bool:
        """One pass without updates; whether it went to its end."""
        log.info("Executing validation step for epoch %d", epoch)
        model = self.state.model.eval()
        meter, iteration = self._begin(Split.VALID, loader, epoch)
        for item in map(model.valid_step, self._pausing.batches(partial(self._batches, loader))):
            iteration += 1
            self._measured(meter, item, iteration, 0.0)
            if self._pausing.stops_after(iteration):
                return False
        self._end(meter)
        return True

    def _finish(self, epoch: int) -> bool:
        """Save, show, and decide; whether the run goes on."""
        history = self.parts.history
        self.state.epoch = epoch
        self.state.end_epoch_of_schedule(history)
        self.parts.watchers.flush()
        self.parts.watchers.renderer.epoch_end(self.progress, history)
        self.parts.save()
        return not (self._is_over() or self.parts.interrupter.should_stop())

    def _is_over(self) -> bool:
        """Whether the rule to stop early says so, of a run that was resumed too."""
        rule = self.parts.stopping
        reason = rule.reason(self.parts.history) if rule and self.state.epoch else None
        if reason:
            log.info("Stopping training loop, %s", reason)
        return reason is not None

    def _computed(self, batches: Iterable[Any]) -> Iterator[TrainOutput[Any]]:
        """The training step of each batch; a batch a device at a time."""
        replicas = self.parts.replicas
        if self.state.needs_closure:
            return map(self._evaluated, batches)
        if len(replicas) == 1:
            compute = self._remembered if self._buffers else self.state.model.train_step
            return map(compute, batches)
        groups = rounds(batches, len(replicas))
        return (step for batches in groups for step in replicas.train_steps(batches))

    def _batches(self, loader: Loader) -> Iterable[Any]:
        return on_device(loader, self.parts.replicas.devices[0])

    def _evaluated(self, batch: Any) -> TrainOutput[Any]:
        """A training step that can be taken again."""
        self._evaluate = partial(self.state.model.train_step, batch)
        step: TrainOutput[Any] = self._evaluate()
        return step

    def _remembered(self, batch: Any) -> TrainOutput[Any]:
        """A training step whose effect on buffers can be undone."""
        self._buffers.take()
        step: TrainOutput[Any] = self.state.model.train_step(batch)
        return step

    def _update(self, gradients: Any, rate: float, iteration: int) -> None:
        if self.state.needs_closure:
            self._update_by_evaluation(rate, iteration)
        else:
            self.state.update(gradients, rate)
        self.parts.replicas.synchronize()

    def _update_by_evaluation(self, rate: float, iteration: int) -> None:
        """An update of L-BFGS; undone where one of its evaluations is not finite."""

        def evaluate() -> TrainOutput[Any]:
            step: TrainOutput[Any] = self._evaluate()
            if not self.parts.guard.passes(step, self.progress.epoch, iteration):
                raise FloatingPointError
            return step

        with suppress(FloatingPointError):
            self.state.update_by(evaluate, rate)

    def _begin(self, split: Split, loader: Loader, epoch: int) -> tuple[Meter, int]:
        """What measures the pass that begins, and how many batches of it are done."""
        meter = self._meter = self.parts.watchers.meter(split, epoch)
        progress = self.progress
        progress.split, progress.epoch, progress.batches = split, epoch, len(loader)
        progress.batch, progress.items = self._pausing.begin(loader, meter)
        progress.running, progress.latest = meter.running, meter.latest
        return meter, progress.batch

    def _measured(self, meter: Meter, item: Any, iteration: int, rate: float) -> None:
        meter.measure(item, iteration, rate)
        self.progress.batch = iteration
        self.progress.items += item.size
        self.parts.watchers.renderer.step(self.progress)

    def _end(self, meter: Meter) -> None:
        for name, value in meter.finish().items():
            self.parts.history.add(Value(self.progress.epoch, self.progress.split, name, value))
