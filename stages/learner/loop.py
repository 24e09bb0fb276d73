"""The loop.

Each epoch: the random state and the order of samples are set from (seed, epoch); every batch is a step
of the schedule, a forward and backward pass, and, where the accumulation window is full, a step of the
optimizer; then the valid split, the history, the checkpoint, retention, and whether to stop early.
After any batch a checkpoint may be written, and a run that was stopped there goes on with the next one.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.events import Progress
from stages.contracts.history import Split, Value
from stages.contracts.outputs import TrainOutput
from stages.learner.batches import Loader, check_workers, on_device
from stages.learner.buffers import Buffers
from stages.learner.checks import has_gradients, missing_gradients
from stages.learner.memory import keep_big_blocks
from stages.learner.meter import Meter
from stages.learner.parts import Parts
from stages.learner.pausing import Pausing
from stages.learner.randomness import set_random_state
from stages.learner.replicas import rounds
from stages.learner.step_checks import StepChecks

log = logging.getLogger(__name__)


class _SkippedError(Exception):
    """An evaluation of L-BFGS is not finite and its batch is skipped."""


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
        self._checks = StepChecks(parts.state.model, parts.state.optimizer)
        self._has_gradients = hasattr(parts.state.model, "optimize")  # such a model updates itself

    def run(self, train: Loader, valid: Loader) -> nn.Module:
        """Train on *train* and validate on *valid* after each epoch; the trained model."""
        if not (len(train) and len(valid)):
            raise BuilderError("a loader has no batches: both splits need at least one")
        check_workers(train, valid)
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
        """Train on *loader* once; return whether the pass was completed.

        No step runs inside `map` or a generator, which would take a StopIteration of the model for the end.
        """
        log.info("Executing training step for epoch %d", epoch)
        state, window, guard, pausing = self.state, self.parts.window, self.parts.guard, self._pausing
        self.parts.replicas.train()
        meter, iteration = self._begin(Split.TRAIN, loader, epoch)
        rate = 0.0
        compute = self._computation()
        for batch in self._grouped(pausing.batches(partial(self._batches, loader))):
            steps = compute(batch)
            del batch  # free its memory before the next one is loaded
            while steps:
                step = steps.pop(0)
                iteration += 1
                rate = state.scheduler.step()
                if guard.passes(step, epoch, iteration):
                    self._has_gradients = self._has_gradients or has_gradients(step)
                    window.add(step.gradients, step.item.size)
                    self._measured(meter, step.item, iteration, rate)
                else:
                    self._buffers.put_back()
                del step  # free its gradients before the next ones are computed
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
        """Validate on *loader* once; return whether the pass was completed."""
        log.info("Executing validation step for epoch %d", epoch)
        model = self.state.model.eval()
        meter, iteration = self._begin(Split.VALID, loader, epoch)
        for batch in self._pausing.batches(partial(self._batches, loader)):
            item = self._checks.valid(model.valid_step(batch))
            del batch  # free its memory before the next one is loaded
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

    def _grouped(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return *batches*; for several devices in lists of one batch per device."""
        replicas = self.parts.replicas
        return batches if len(replicas) == 1 else rounds(batches, len(replicas))

    def _computation(self) -> Callable[[Any], list[TrainOutput[Any]]]:
        """Return the function that computes the training steps of what `_grouped` yields."""
        if self.state.needs_closure:
            return self._evaluated
        if len(self.parts.replicas) > 1:
            return partial(self.parts.replicas.train_steps, check=self._checks.train)
        if self._buffers:
            return self._remembered
        train_step, clear_gradients = self.state.model.train_step, self.parts.replicas.clear_gradients
        check = self._checks.train

        def compute(batch: Any) -> list[TrainOutput[Any]]:
            clear_gradients()
            return [check(train_step(batch))]

        return compute

    def _batches(self, loader: Loader) -> Iterable[Any]:
        return on_device(loader, self.parts.replicas.devices[0])

    def _remembered(self, batch: Any) -> list[TrainOutput[Any]]:
        """Compute a training step whose effect on buffers can be undone."""
        self._buffers.take()
        self.parts.replicas.clear_gradients()
        return [self._checks.train(self.state.model.train_step(batch))]

    def _evaluated(self, batch: Any) -> list[TrainOutput[Any]]:
        """Compute the first evaluation of L-BFGS, and keep *batch* for the next ones."""
        self._evaluate = partial(self._remembered, batch)
        self._first: TrainOutput[Any] | None = self._evaluate()[0]
        return [self._first]

    def _update(self, gradients: Any, rate: float, iteration: int) -> None:
        if not self._has_gradients:
            where = f"epoch {self.progress.epoch}, batch {iteration}"
            raise missing_gradients(self.state.model, gradients, where=where)
        if self.state.needs_closure:
            self._update_by_evaluation(rate, iteration)
        elif self._may_apply(gradients, iteration):
            self.state.update(gradients, rate)
        self.parts.replicas.synchronize()

    def _may_apply(self, gradients: Any, iteration: int) -> bool:
        """Return whether the sum of several batches is finite; a single batch has been checked already."""
        parts = self.parts
        is_sum = parts.window.length > 1
        return not is_sum or parts.guard.passes_sum(gradients, self.progress.epoch, iteration)

    def _update_by_evaluation(self, rate: float, iteration: int) -> None:
        """Update with L-BFGS; undo the update if one of its evaluations is not finite."""
        before = self._buffers.kept

        def evaluate() -> TrainOutput[Any]:
            step, self._first = self._first or self._evaluate()[0], None
            if not self.parts.guard.passes(step, self.progress.epoch, iteration):
                raise _SkippedError
            return step

        try:
            self.state.update_by(evaluate, rate)
        except _SkippedError:
            self._buffers.put_back(before)

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
