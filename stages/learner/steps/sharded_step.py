"""Training steps of several ranks that shard the parameters (FSDP2)."""

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
from stages.distributed import RankGroup, Share
from stages.learner.checks import StepChecks
from stages.learner.run_state import RunState
from stages.learner.steps.rank_step import RankStep, check_weight
from stages.optim.gradients import Gradients

NO_LOSS = SimpleNamespace(loss=torch.zeros(()))
"""The output of a rank whose weight is 0: its loss, a mean over nothing, is not checked."""


class ShardedStep(RankStep):
    """A step whose gradients are the mean over all ranks when the backward pass ends, and sharded.

    Every rank runs each pass, because all ranks gather the parameters together. One without a sample uses the
    first of the batch, with weight 0 and without a value for metrics.
    """

    def __init__(self, state: RunState, checks: StepChecks, group: RankGroup) -> None:
        super().__init__(state, checks, group)
        self._is_sum = state.window.length > 1  # `passes` checks what the ranks have added

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

    def passes(self, step: TrainOutput[Any], epoch: int, iteration: int) -> bool:
        """Return whether the gradients of all ranks are valid, as `Guard.passes` does.

        A rank without a sample has a part of the gradients too.
        """
        of_rank = replace(step, item=self._output, gradients=_local(step.gradients))
        return super().passes(of_rank, epoch, iteration)

    def validate(self, run: Callable[[Any], Any], batch: Share) -> Any:
        """Return the output of the samples of this rank; None without one."""
        item = run(batch.batch)
        return item if self._count_own(batch) else None

    def _update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the shards of this rank, unless the sum of several finite batches overflowed on any rank."""
        if self._is_sum and not self._all_pass(gradients, epoch, iteration):
            return
        self._state.update(gradients, rate, self._guard.flag)

    def _all_pass(self, gradients: Gradients, epoch: int, iteration: int) -> bool:
        passes = self._guard.passes_sum(_local(gradients), epoch, iteration, self._window.taken_weight)
        return not self._group.any(not passes) if self._skips else passes

    def _run_backward(
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
