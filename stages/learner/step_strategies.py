"""Step strategies: how the loop computes the gradients of a batch and updates the model with them.

* `PlainStep`: forward and backward pass on one device, then a step of the optimizer.
* `RollbackStep`: the same, and the buffers of the model are restored after a skipped batch.
* `LbfgsStep`: an optimizer that evaluates a batch several times per step.
* `ReplicaStep`: the same model on several devices, a batch on each, and one update for all.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch

from stages.contracts.history import Split
from stages.contracts.outputs import TrainOutput
from stages.contracts.placement import move
from stages.learner.checks import StepChecks
from stages.learner.model_state import ModelState
from stages.learner.run_state import RunState
from stages.models import clear_gradients, prepare_backward
from stages.optim.gradients import Gradients
from stages.optim.mixed_precision import MixedPrecision


class Replicas:
    """A model on the first device, and a copy of it on each of the others.

    A round of N devices computes what an accumulation window of N batches computes. Running statistics are
    those of the first device's batches; they are copied to the others at the start of an epoch.
    """

    def __init__(self, model: Any, devices: Sequence[torch.device]) -> None:
        self.devices = tuple(devices)
        self.models = [model, *(copy.deepcopy(model).to(device) for device in self.devices[1:])]

    def __len__(self) -> int:
        return len(self.devices)

    def apply(self, change: Callable[[Any], None]) -> None:
        """Call *change* with the model on every device."""
        for model in self.models:
            change(model)

    def synchronize(self) -> None:
        """Copy the parameters of the first model to the others."""
        if len(self.models) == 1:
            return
        source = list(self.models[0].parameters())
        with torch.no_grad():
            for model in self.models[1:]:
                for copied, parameter in zip(model.parameters(), source, strict=True):
                    copied.copy_(parameter)

    def copy_buffers(self, saved: Sequence[Sequence[torch.Tensor]] = ()) -> None:
        """Copy the buffers of the first model to the others; then *saved*, if any, which `buffers` returned.

        Between two calls each model changes its own buffers.
        """
        with torch.no_grad():
            for model in self.models[1:]:
                for copied, buffer in zip(model.buffers(), self.models[0].buffers(), strict=True):
                    copied.copy_(buffer)
            for model, values in zip(self.models[1:], saved, strict=False):
                for buffer, value in zip(model.buffers(), values, strict=True):
                    buffer.copy_(value)

    def buffers(self) -> list[list[torch.Tensor]]:
        """Return a copy of the buffers of each further model."""
        return [[buffer.detach().clone() for buffer in model.buffers()] for model in self.models[1:]]


class StepStrategy(Protocol):
    """Computes and applies the training steps of one run."""

    def begin_epoch(self, buffers: Sequence[Sequence[torch.Tensor]]) -> None:
        """Prepare every device for an epoch, resumed with *buffers* of the further devices, if any."""

    def training(self) -> AbstractContextManager[None]:
        """Return a context in which the model is in training mode and its parameters are looked up once."""

    def group(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return *batches* in the units that `compute` accepts."""

    def compute(self, batch: Any) -> list[TrainOutput[Any]]:
        """Run forward and backward on *batch*, a unit of `group`; return an output per batch in it."""

    def roll_back(self) -> None:
        """Undo what `compute` did to the model, because the batch is skipped."""

    def update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the model with *gradients*, one per parameter, at the learning rate *rate*."""


def choose_step_strategy(state: RunState, replicas: Replicas, checks: StepChecks) -> StepStrategy:
    """Return the strategy that the optimizer, the devices and the rule for non-finite batches need."""
    model = state.model.model
    has_rollback = state.guard.rule.kind == "skip" and next(model.buffers(), None) is not None
    if state.model.needs_closure:
        return LbfgsStep(state, checks, Buffers(model if has_rollback else None))
    if len(replicas) > 1:
        return ReplicaStep(state, checks, replicas)
    return RollbackStep(state, checks, Buffers(model)) if has_rollback else PlainStep(state, checks)


class PlainStep:
    """A forward and backward pass on one device, then a step of the optimizer."""

    def __init__(self, state: RunState, checks: StepChecks) -> None:
        self._model = state.model.model
        self._state: ModelState = state.model
        self._guard = state.guard
        self._precision = state.precision
        self._scaler = state.precision.scaler
        self._run_step = state.run_step
        self._is_sum = state.window.length > 1
        self._check = checks.check_train_step

    def begin_epoch(self, buffers: Sequence[Sequence[torch.Tensor]]) -> None:
        """Do nothing: one device has one copy of the buffers."""

    def training(self) -> AbstractContextManager[None]:
        """Set the model to training mode, and look up its parameters once for the block."""
        return _train_mode([self._model], self._precision)

    def group(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return *batches*."""
        return batches

    def compute(self, batch: Any) -> list[TrainOutput[Any]]:
        """Run forward and backward on *batch*."""
        clear_gradients(self._model)
        if self._scaler is not None:
            self._scaler.begin_step()
        step = self._check(self._run_step(self._model.train_step, Split.TRAIN, batch))
        if self._scaler is not None:
            self._scaler.check_used(self._model)
        return [step]

    def roll_back(self) -> None:
        """Do nothing: the step changed nothing but gradients."""

    def update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the model, unless the sum of several finite batches overflowed."""
        if not self._is_sum or self._guard.passes_sum(gradients, epoch, iteration):
            self._state.update(gradients, rate, self._guard.flag)


class RollbackStep(PlainStep):
    """A plain step of a model with buffers, such as running statistics, that are restored on a skip."""

    def __init__(self, state: RunState, checks: StepChecks, buffers: "Buffers") -> None:
        super().__init__(state, checks)
        self._buffers = buffers

    def compute(self, batch: Any) -> list[TrainOutput[Any]]:
        """Run forward and backward on *batch*, after a copy of the buffers."""
        self._buffers.save()
        return super().compute(batch)

    def roll_back(self) -> None:
        """Restore the buffers."""
        self._buffers.restore()


class LbfgsStep(RollbackStep):
    """A step of L-BFGS, which evaluates the batch several times."""

    def compute(self, batch: Any) -> list[TrainOutput[Any]]:
        """Run the first evaluation of *batch*, and keep the batch for the next ones."""
        self._batch = batch
        steps = super().compute(batch)
        self._first: TrainOutput[Any] | None = steps[0]
        return steps

    def update(
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
            step, self._first = self._first or RollbackStep.compute(self, self._batch)[0], None
            if not self._guard.passes(step, epoch, iteration):
                raise _SkippedError
            return step

        try:
            self._state.update_with_closure(evaluate, rate)
        except _SkippedError:
            self._buffers.restore(saved)


class ReplicaStep(PlainStep):
    """A batch on each of several devices, and one update for all of them.

    The steps are launched one after another: accelerators run them at the same time.
    """

    def __init__(self, state: RunState, checks: StepChecks, replicas: Replicas) -> None:
        super().__init__(state, checks)
        self._replicas = replicas

    def begin_epoch(self, buffers: Sequence[Sequence[torch.Tensor]]) -> None:
        """Copy the buffers of the first model to the others, or *buffers* to those that they belong to."""
        self._replicas.copy_buffers(buffers)

    def training(self) -> AbstractContextManager[None]:
        """Set every model to training mode, and look up their parameters once for the block."""
        return _train_mode(self._replicas.models, self._precision)

    def group(self, batches: Iterable[Any]) -> Iterable[list[Any]]:
        """Return *batches* in lists of one per device; the last may be shorter."""
        return group_batches(batches, len(self._replicas))

    def compute(self, batch: Sequence[Any]) -> list[TrainOutput[Any]]:
        """Run forward and backward on each device; the gradients are moved to the first."""
        replicas, first = self._replicas, self._replicas.devices[0]
        replicas.apply(clear_gradients)
        with self._precision.autocast():
            steps = [
                self._check(model.train_step(each if device == first else move(each, device)))
                for model, device, each in zip(replicas.models, replicas.devices, batch, strict=False)
            ]
        return [
            TrainOutput(
                self._model,
                [None if g is None else g.to(first) for g in step.gradients],
                step.item if device == first else move(step.item, first),
            )
            for step, device in zip(steps, replicas.devices, strict=False)
        ]

    def update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the first model, and copy its parameters to the others."""
        super().update(gradients, rate, epoch=epoch, iteration=iteration)
        self._replicas.synchronize()


class Buffers:
    """The buffers of *model*, such as running statistics, and a copy to restore; none if it is None."""

    def __init__(self, model: Any) -> None:
        self._buffers = list(model.buffers()) if model is not None else []
        self.saved: list[torch.Tensor] = []
        """The values at the last call of `save`."""

    def save(self) -> None:
        """Copy the current values."""
        self.saved = [buffer.clone() for buffer in self._buffers]

    def restore(self, values: list[torch.Tensor] | None = None) -> None:
        """Set the buffers to *values*, by default the saved ones."""
        with torch.no_grad():
            for buffer, value in zip(self._buffers, self.saved if values is None else values, strict=False):
                buffer.copy_(value)


class _SkippedError(Exception):
    """An evaluation of L-BFGS is not finite and its batch is skipped."""


@contextmanager
def _train_mode(models: Sequence[Any], precision: MixedPrecision) -> Iterator[None]:
    """Set *models* to training mode, and prepare their backward passes for the block."""
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(prepare_backward(model, precision.run_backward))
        for model in models:
            model.train()
        yield


def group_batches(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield *batches* in lists of *size*; the last may be shorter."""
    group = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
