"""Training steps of several ranks that shard the parameters (FSDP2)."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch import Tensor

from stages import distributed
from stages.contracts.errors import BuilderError
from stages.contracts.outputs import TrainOutput, weight_of
from stages.distributed import RankGroup, Share
from stages.learner.checks import StepChecks
from stages.learner.rank_step import RankStep
from stages.learner.run_state import RunState
from stages.learner.step_strategies import train_mode
from stages.optim.gradients import Gradients


class ShardedStep(RankStep):
    """A step whose gradients are the mean over all ranks when the backward pass ends, and sharded.

    Every rank runs each pass, because all ranks gather the parameters together. One without a sample uses the
    first of the batch, with weight 0 and without a value for metrics.
    """

    def __init__(self, state: RunState, checks: StepChecks, group: RankGroup) -> None:
        super().__init__(state, checks, group)
        self._is_sum = state.window.length > 1  # `passes` checks what the ranks have added

    def training(self) -> AbstractContextManager[None]:
        """Set the model to training mode, and weight the losses of the block by the share of this rank."""
        return train_mode(self._model, self._run_backward)

    def compute(self, batch: Share) -> TrainOutput[Any]:
        """Run forward and backward on the samples of this rank; without one, the output is None."""
        own, factor = self._weigh_loss(batch)
        self._factor: float | None = factor
        step = super().compute(batch)
        self._check_weight(step, own)
        self._output = step.item
        return step if own else replace(step, item=None)

    def passes(self, step: TrainOutput[Any], epoch: int, iteration: int) -> bool:
        """Return whether the gradients of all ranks are valid, as `Guard.passes` does.

        A rank without a sample has a part of the gradients too.
        """
        own = replace(step, item=self._output, gradients=_local(step.gradients))
        return super().passes(own, epoch, iteration)

    def validate(self, run: Callable[[Any], Any], batch: Share) -> Any:
        """Return the output of the samples of this rank; None without one."""
        with self._divide_loss(batch):
            item = run(batch.batch)
        return item if self._weigh_loss(batch)[0] else None

    def weigh(self, step: TrainOutput[Any], samples: int) -> int:  # noqa: ARG002  other strategies need it
        """Return the weight of the gradients, which is the number of samples on all ranks."""
        return samples

    def update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the shards of this rank, unless the sum of several finite batches overflowed on any rank."""
        if self._is_sum and not self._all_pass(gradients, epoch, iteration):
            return
        self._state.update(gradients, rate, self._guard.flag)

    def _all_pass(self, gradients: Gradients, epoch: int, iteration: int) -> bool:
        passes = self._guard.passes_sum(_local(gradients), epoch, iteration)
        return not self._group.any(not passes) if self._skips else passes

    def _run_backward(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        factor, self._factor = self._factor, None
        self._precision.run_backward(loss if factor is None else loss * factor, parameters)

    def _check_weight(self, step: TrainOutput[Any], own: int) -> None:
        """Raise `BuilderError` if the gradients are not weighted by the number of samples."""
        name = type(self._model).__name__.removeprefix("FSDP")
        if self._factor is not None:
            raise BuilderError(
                f"{name}.train_step calls loss.backward() itself, so the strategy fsdp cannot weight the "
                "ranks by their samples. Call stages.models.backward(self, loss), or use the strategy ddp"
            )
        if own and weight_of(step.item) != step.item.size:
            raise BuilderError(
                f"the output of {name}.train_step has a weight other than its number of samples, which the "
                "strategy fsdp does not support. Use the strategy ddp"
            )


def _local(gradients: Gradients) -> list[Tensor | None]:
    return [distributed.to_local(each) for each in gradients]
