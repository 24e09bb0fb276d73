"""Training steps of several ranks: each computes its share of a batch, and all make the same update."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stages import distributed
from stages.contracts.errors import BuilderError
from stages.contracts.outputs import TrainOutput, Weight, weight_of
from stages.contracts.placement import share_of
from stages.distributed import RankGroup, Share
from stages.learner.checks import StepChecks
from stages.learner.model_state import ModelState
from stages.learner.resume.training_state import load_training_state, training_state
from stages.learner.run_state import RunState
from stages.learner.steps.step_strategies import PlainStep, StepResult
from stages.optim.gradients import Gradients


def synchronize_ranks(group: RankGroup, model: torch.nn.Module, epoch: int, *, has_shards: bool) -> None:
    """Give the buffers of rank 0 to every rank, after the training of *epoch*.

    Raises `BuilderError` if the ranks have different weights: code of the user has changed them. If the model
    *has_shards*, the ranks have different parts of the weights, which are not compared.
    """
    if group.size == 1:
        return
    group.broadcast_tensors(model.buffers())
    if has_shards:
        return
    sums = torch.stack([parameter.detach().double().sum() for parameter in model.parameters()]).cpu()
    of_main: Any = group.broadcast({"sums": sums})
    if group.any(not torch.equal(sums.view(torch.int64), of_main["sums"].view(torch.int64))):
        raise BuilderError(
            f"epoch {epoch}: the ranks have different weights of {type(model).__name__}, because something "
            "besides the optimizer of the run changes them. Use one device"
        )


def synchronize_average(group: RankGroup, model: ModelState) -> None:
    """Give the averaged buffers of rank 0 to every rank, whose steps had buffers of their own."""
    if model.average is None:
        return
    buffers = {name for name, _ in model.model.named_buffers(remove_duplicate=False)}  # as in a state dict
    group.broadcast_tensors([value for name, value in model.average.state.items() if name in buffers])


def synchronize_training_state(group: RankGroup, model: torch.nn.Module) -> None:
    """Give the `training_state` of rank 0, which checkpoints contain, to the model of every rank."""
    if group.size > 1 and (state := training_state(model)):
        of_main = group.broadcast(state)
        if not group.is_main:
            load_training_state(model, of_main)


class RankStep(PlainStep):
    """A step on this rank's share of a batch, which is skipped if that of any rank is not valid."""

    def __init__(self, state: RunState, checks: StepChecks) -> None:
        super().__init__(state, checks)
        self._group = state.group
        self._parameter_count = sum(1 for _ in state.model.model.parameters())
        self._is_sum = True  # every rank checks the gradients that the ranks have added
        self._passes = self.passes

    def compute(self, batch: Share) -> TrainOutput[Any]:
        """Run forward and backward on the samples of this rank; without one, every gradient is None."""
        if batch.batch is not None:
            step = super().compute(batch.batch)
            self.samples = batch.samples
            return step
        self.weight, self.samples = 0, batch.samples
        self._buffers.save()
        if self._scaler is not None:
            self._scaler.begin_step()
        return TrainOutput(self._model, [None] * self._parameter_count, None)

    def passes(self, step: TrainOutput[Any], epoch: int, iteration: int, weight: Weight) -> bool:
        """Return whether the shares of all ranks are valid, as `Guard.passes` does.

        In fp16, an overflow on any rank leaves out the batch on all, so that all have the same scale. With
        the rule ``stop``, only the ranks whose share is not valid raise `NonFiniteError`.
        """
        guard = self._guard
        skipped = guard.skipped
        if self._scaler is not None:
            self._scaler.share_overflow(self._group.sum)
        passes = guard.passes(step, epoch, iteration, weight)
        if not self._skips:
            return passes
        all_pass = not self._group.any(not passes)
        guard.skipped = 0 if all_pass else skipped + 1
        return all_pass

    def validate(self, run: Callable[[Any], Any], batch: Share) -> StepResult:
        """Return the output of the samples of this rank; None without one."""
        return StepResult(None if batch.batch is None else run(batch.batch), batch.samples)

    def _count_own(self, batch: Share) -> int:
        """Return the number of samples of this rank."""
        share = share_of(batch.samples, self._group.rank, self._group.size)
        count: int = share.stop - share.start
        return count


class SynchronizedStep(RankStep):
    """A step of a model whose batch norms use the statistics of all ranks.

    Their backward pass adds gradients of all ranks, so it must multiply each loss by its weight.
    """

    def __init__(self, state: RunState, checks: StepChecks) -> None:
        super().__init__(state, checks)
        self._run_backward = self._run_weighted

    def compute(self, batch: Share) -> TrainOutput[Any]:
        """Run forward and backward on the samples of this rank.

        Raises `BuilderError` on all ranks if one has none, because all take part in the exchange.
        """
        size, samples = self._group.size, batch.samples
        if samples < size:
            raise BuilderError(
                f"a batch has {samples} sample{'s'[: samples != 1]} for {size} ranks, and with synchronized "
                "batch norms each rank needs one. Set another batch_size, or use fewer ranks"
            )
        self._samples = samples
        self._own: float = self._count_own(batch)
        return super().compute(batch)

    def _weigh(self, step: TrainOutput[Any]) -> Weight:
        weight: float = self._read(weight_of(step.item))
        check_weight(self._model, weight, self._own)
        return weight

    def _run_weighted(
        self, loss: Tensor, parameters: Sequence[Tensor], weight: "Weight | None" = None
    ) -> None:
        """Set ``.grad`` of *parameters* to the gradients of *loss*, which the window weights later."""
        if weight is not None:
            self._own = self._read(weight)
        factor = self._own * self._group.size / self._samples  # about 1, as in one process
        self._precision.run_backward(loss * factor, parameters)
        for parameter in parameters:
            if parameter.grad is not None and factor:
                parameter.grad.div_(factor)


def check_weight(model: Any, weight: float, backward_weight: float) -> None:
    """Raise `BuilderError` if the output of *model* has another *weight* than its backward pass."""
    if weight != backward_weight:
        name = f"{type(model).__name__.removeprefix('FSDP')}.train_step"
        raise BuilderError(
            f"the output of {name} has the weight {weight:g}, and its backward pass {backward_weight:g}. "
            "Pass the weight to both: backward(self, loss, weight)"
        )


NO_LOSS = SimpleNamespace(loss=torch.zeros((), device="cpu"))
"""The output of a rank whose weight is 0: its loss, a mean over nothing, is not checked."""


class ShardedStep(RankStep):
    """A step whose gradients are the mean over all ranks when the backward pass ends, and sharded.

    Every rank runs each pass, because all ranks gather the parameters together. One without a sample uses the
    first of the batch, with weight 0 and without a value for metrics.
    """

    def __init__(self, state: RunState, checks: StepChecks) -> None:
        super().__init__(state, checks)
        self._is_sum = state.window.length > 1  # `passes` checks what the ranks have added
        self._run_backward = self._run_weighted

    @contextmanager
    def training(self) -> Iterator[None]:
        """Set the model to training mode.

        A validation leaves the parameters of the root gathered, of which no gradient would be sharded.
        """
        self._model.reshard()
        with super().training():
            yield

    def compute(self, batch: Share) -> TrainOutput[Any]:
        """Run forward and backward on the samples of this rank; without one, the output is None."""
        self._own: float = self._count_own(batch)
        self._has_samples = self._own > 0
        self._total: float | None = None
        step = super().compute(batch)
        self._output = step.item if self._own else NO_LOSS
        return step if self._has_samples else replace(step, item=None)

    def passes(self, step: TrainOutput[Any], epoch: int, iteration: int, weight: Weight) -> bool:
        """Return whether the gradients of all ranks are valid, as `Guard.passes` does.

        A rank without a sample has a part of the gradients too.
        """
        of_rank = replace(step, item=self._output, gradients=_local(step.gradients))
        return super().passes(of_rank, epoch, iteration, weight)

    def validate(self, run: Callable[[Any], Any], batch: Share) -> StepResult:
        """Return the output of the samples of this rank; None without one."""
        item = run(batch.batch)
        return StepResult(item if self._count_own(batch) else None, batch.samples)

    def _update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the shards of this rank, unless the sum of several finite batches overflowed on any rank."""
        if self._is_sum and not self._all_pass(gradients, epoch, iteration):
            return
        self._state.update(gradients, rate, self._guard.flag)

    def _all_pass(self, gradients: Gradients, epoch: int, iteration: int) -> bool:
        passes = self._guard.passes_sum(_local(gradients), epoch, iteration, self._window.taken_weight)
        return not self._group.any(not passes) if self._skips else passes

    def _run_weighted(
        self, loss: Tensor, parameters: Sequence[Tensor], weight: "Weight | None" = None
    ) -> None:
        """Set ``.grad`` of *parameters* to the mean gradients of all ranks by their weights."""
        if weight is not None and self._has_samples:
            self._own = self._read(weight)
        total = torch.tensor(self._own, dtype=torch.float64, device=loss.device)
        self._group.sum(total)
        self._total = self._read(total)
        factor = self._own * self._group.size / (self._total or 1)
        self._precision.run_backward(loss * factor, parameters)

    def _weigh(self, step: TrainOutput[Any]) -> Weight:
        """Return the sum of the weights of all ranks. Raises `BuilderError` if it is not in the gradients."""
        if self._total is None:
            name = type(self._model).__name__.removeprefix("FSDP")
            raise BuilderError(
                f"{name}.train_step calls loss.backward() itself, so the strategy fsdp cannot weight the "
                "ranks. Call stages.models.backward(self, loss, weight), or use the strategy ddp"
            )
        if self._has_samples:
            check_weight(self._model, self._read(weight_of(step.item)), self._own)
        return self._total


def _local(gradients: Gradients) -> list[Tensor | None]:
    return [distributed.to_local(gradient) for gradient in gradients]
