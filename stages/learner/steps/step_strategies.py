"""Step strategies: how the loop computes the gradients of a batch and updates the model with them.

* `PlainStep`: forward and backward pass on one device, then a step of the optimizer.
* `LbfgsStep`: an optimizer that evaluates a batch several times per step.

`rank_step.py` has the step of several ranks, and `cuda_graph.py` the captured one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from stages.contracts.history import Split
from stages.contracts.outputs import TrainOutput, Weight, as_count, weight_of
from stages.contracts.step_log import current_log
from stages.learner.checks import StepChecks, has_gradients, missing_gradients
from stages.learner.metering import NOTHING
from stages.learner.model_state import ModelState
from stages.learner.run_state import RunState
from stages.metrics import MetricState
from stages.models import prepare_backward
from stages.models.steps import RunBackward
from stages.optim.gradients import Gradients


class StepResult(NamedTuple):
    """What a training step leaves to measure."""

    item: Any
    """The output of the model; None if this rank has no sample."""
    samples: int
    """The number of samples of the batch on all ranks."""
    measured: Mapping[str, MetricState] = NOTHING
    """The values of metrics that the step has measured."""
    is_skipped: bool = False
    """True if the batch is skipped, because it is not finite."""


class PlainStep:
    """A forward and backward pass on one device, then a step of the optimizer.

    The other strategies derive from it. If non-finite batches are skipped, the buffers of the model, such as
    running statistics, are restored after one.
    """

    def __init__(self, state: RunState, checks: StepChecks) -> None:
        self._model = state.model.model
        self._state: ModelState = state.model
        self._guard = state.guard
        self._precision = state.precision
        self._scaler = state.precision.scaler
        self._run_backward: RunBackward = state.precision.run_backward
        self._train_step = state.wrap_step(self._model.train_step, Split.TRAIN)
        self._window = state.window
        self._is_sum = state.window.length > 1
        self._has_gradients = False
        """True if a step of the epoch had a gradient."""
        self._check = checks.check_train_step
        self._passes: Callable[..., bool] = state.guard.passes
        self._skips = state.guard.rule.kind == "skip"
        self._buffers = Buffers(self._model if self._skips else None)
        self.weight: Weight = 0
        """The weight of the gradients that `compute` returned last."""
        self.samples = 0
        """The number of samples of the batch, on all ranks."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Set the model to training mode, and look up its parameters once for the block."""
        self._has_gradients = self._state.updates_itself
        with prepare_backward(self._model, self._run_backward) as self._parameters:
            self._model.train()
            self._state.begin_training()
            yield

    def step(self, batch: Any, rate: float, *, epoch: int, iteration: int) -> StepResult:  # noqa: ARG002  a graph needs it
        """Run forward and backward on *batch*, and add its gradients to the accumulation window."""
        step = self.compute(batch)
        if not self._passes(step, epoch, iteration, self.weight):
            self._buffers.restore()
            return StepResult(step.item, self.samples, is_skipped=True)
        if not self._has_gradients:
            self._has_gradients = has_gradients(step)
        if not self._guard.overflowed:
            self._window.add(step.gradients, self.weight)
        return StepResult(step.item, self.samples)

    def update(self, gradients: "Gradients | None", rate: float, *, epoch: int, iteration: int) -> None:
        """Update the model with *gradients*, one per parameter, at the learning rate *rate*.

        They are None if no batch of the window has counted. Raises `BuilderError` for a first update in which
        no parameter has a gradient.
        """
        if gradients is None:
            return
        if not (self._has_gradients or any(gradient is not None for gradient in gradients)):
            location = f"epoch {epoch}, batch {iteration}"
            raise missing_gradients(self._model, gradients, location=location)
        self._update(gradients, rate, epoch=epoch, iteration=iteration)

    def compute(self, batch: Any) -> TrainOutput[Any]:
        """Run forward and backward on *batch*; if its weight is 0, every gradient is None."""
        if self._skips:
            self._buffers.save()
        for parameter in self._parameters:
            parameter.grad = None
        if self._scaler is not None:
            self._scaler.begin_step()
        step: TrainOutput[Any] = self._train_step(batch)
        self.samples = self._check(step)
        if self._scaler is not None:
            self._scaler.check_used(self._model)
        self.weight = self._weigh(step)
        if type(self.weight) is torch.Tensor or self.weight:
            return step
        return TrainOutput(step.model, [None] * len(step.gradients), step.item)

    def _weigh(self, step: TrainOutput[Any]) -> Weight:
        """Return the weight of the gradients of *step*: that of its output."""
        weight = weight_of(step.item)
        return weight if type(weight) is int else self._read(weight)

    def _read(self, weight: Weight) -> Any:
        """Return *weight* as a number, unless the guard, that of one rank on a device, reads no number."""
        return weight if self._guard.flag is not None else as_count(float(weight))

    def validate(self, run: Callable[[Any], Any], batch: Any) -> StepResult:
        """Return the result of *run*, a checked validation step, on *batch*."""
        item = run(batch)
        return StepResult(item, item.size)

    def _update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the model, unless the sum of several finite batches overflowed."""
        weight = self._window.taken_weight
        if not self._is_sum or self._guard.passes_sum(gradients, epoch, iteration, weight):
            self._state.update(gradients, rate, self._guard.flag)


class LbfgsStep(PlainStep):
    """A step of L-BFGS, which evaluates the batch several times."""

    def compute(self, batch: Any) -> TrainOutput[Any]:
        """Run the first evaluation of *batch*, which is measured, and keep the batch for the next ones."""
        self._batch = batch
        step = super().compute(batch)
        self._first: TrainOutput[Any] | None = step
        return step

    def _update(
        self,
        gradients: Gradients,  # noqa: ARG002  L-BFGS computes its own
        rate: float,
        *,
        epoch: int,
        iteration: int,
    ) -> None:
        """Update the model; undo the update if one of its evaluations is not finite and is skipped."""
        saved = self._buffers.saved

        def evaluate() -> TrainOutput[Any]:
            step, self._first = self._first or PlainStep.compute(self, self._batch), None
            if not self._guard.passes(step, epoch, iteration, self.weight):
                raise _SkippedError
            return step

        log_of_pass = current_log.set(None)  # the first evaluation has logged what belongs to the batch
        try:
            self._state.update_with_closure(evaluate, rate)
        except _SkippedError:
            self._buffers.restore(saved)
        finally:
            current_log.reset(log_of_pass)


class Buffers:
    """The buffers of *model*, such as running statistics, and a copy to restore; none if it is None.

    A model may change a buffer in place, or assign a new tensor to it.
    """

    def __init__(self, model: Any) -> None:
        modules = model.modules() if model is not None else ()
        self._modules = [module for module in modules if module._buffers]  # noqa: SLF001  each step copies them
        self.saved: list[SavedBuffer] = []
        """The buffers at the last call of `save`."""

    def save(self) -> None:
        """Copy the current values."""
        self.saved = [
            SavedBuffer(module, name, buffer, buffer.clone())
            for module in self._modules
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def restore(self, saved: Sequence["SavedBuffer"] | None = None) -> None:
        """Restore the buffers in *saved*, by default those of the last call of `save`."""
        with torch.no_grad():
            for module, name, buffer, value in self.saved if saved is None else saved:
                buffer.copy_(value)
                if getattr(module, name) is not buffer:
                    setattr(module, name, buffer)


class SavedBuffer(NamedTuple):
    """A buffer of a module, and a copy of its value."""

    module: Any
    name: str
    buffer: torch.Tensor
    value: torch.Tensor


class _SkippedError(Exception):
    """An evaluation of L-BFGS is not finite and its batch is skipped."""
