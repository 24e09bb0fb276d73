"""What training changes: the model, the optimizer, the scheduler, and how many epochs are done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from stages.checkpoints import Checkpoint
from stages.contracts.errors import CheckpointError
from stages.contracts.history import Direction, History, Split, Value
from stages.records import FullPrecision, NamedMpkGzFileRecorder, Recorder


class LrScheduler(Protocol):
    """What gives the learning rate of each batch. Burn's `LrScheduler`."""

    def step(self) -> float:
        """The rate of the next batch."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from *state*."""


@dataclass
class State:
    """Everything that a step changes, and that a checkpoint holds."""

    model: Any
    optimizer: torch.optim.Optimizer
    scheduler: LrScheduler
    epoch: int = 0
    """The last one that is done."""

    def update(self, gradients: Sequence[Tensor | None], rate: float) -> None:
        """One step of the optimizer with *gradients*, one for each of the model's parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parameters = list(self.model.parameters())
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        for parameter in parameters:
            parameter.grad = None

    def checkpoint(self, history: History) -> Checkpoint:
        """All that is needed to go on from here, as trees of tensors and numbers."""
        optim = self.optimizer.state_dict()
        return Checkpoint(
            model=dict(self.model.state_dict()),
            optim={**optim, "state": {str(key): kept for key, kept in optim["state"].items()}},
            scheduler=self.scheduler.state_dict(),
            trainer={
                "epoch": self.epoch,
                "history": [[v.epoch, v.split.value, v.metric, v.value] for v in history],
            },
        )

    def restore(self, checkpoint: Checkpoint) -> History:
        """Go on from *checkpoint*; the numbers up to there. Raises `CheckpointError` if it does not fit."""
        optim = checkpoint.optim
        try:
            self.model.load_state_dict(checkpoint.model)
            self.optimizer.load_state_dict(
                {**optim, "state": {int(key): kept for key, kept in optim["state"].items()}}
            )
            self.scheduler.load_state_dict(checkpoint.scheduler)
            self.epoch = int(checkpoint.trainer["epoch"])
            return _history(checkpoint)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint is not one of this model and optimizer: {error}"
            ) from error


def checkpoint_recorder() -> Recorder:
    """The recorder that a run's own checkpoints are written with: every bit is kept."""
    return NamedMpkGzFileRecorder(FullPrecision)


def best_epoch(checkpoint: Checkpoint) -> int:
    """The epoch with the lowest validation loss up to *checkpoint*."""
    best = _history(checkpoint).best(Split.VALID, "Loss", Direction.LOWEST)
    if best is None:
        raise CheckpointError("no epoch has a finite validation loss, so none is the best")
    return best


def _history(checkpoint: Checkpoint) -> History:
    rows = checkpoint.trainer["history"]
    return History(Value(epoch, Split(split), name, value) for epoch, split, name, value in rows)
