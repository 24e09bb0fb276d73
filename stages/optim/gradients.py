"""Gradients of several batches as one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import PositiveInt

from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

Gradients: TypeAlias = "Sequence[Tensor | None]"
"""One for each parameter of a model, in their order; none where the loss does not depend on it."""


class Accumulation(Config):
    """How many batches make one step of the optimizer, and how."""

    batches: PositiveInt = 1
    reduction: Literal["mean", "sum"] = "mean"
    """``mean``: every sample weighs the same, as in one batch of the joined size. ``sum``: Burn's, which adds
    up the mean gradients of the batches, so that the step grows with their number."""
    leftover: Literal["flush", "drop", "carry"] = "flush"
    """What becomes of a window that is not full when the epoch ends. ``flush``: applied, weighed by what is
    in it. ``drop``: forgotten, as in Burn. ``carry``: filled up in the next epoch, and after the last one
    forgotten."""


class Window:
    """Adds up the gradients of *length* batches.

    With ``mean``, the default, each batch weighs by its samples: the result equals, to float tolerance, the
    gradient of one batch of the joined size. A window of one batch hands its gradients on untouched.
    """

    def __init__(
        self,
        length: int,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        leftover: Literal["flush", "drop", "carry"] = "flush",
    ) -> None:
        self.length = length
        self.reduction = reduction
        self.leftover = leftover
        self.batches = 0
        self._samples = 0
        self._sums: list[Tensor | None] = []

    @classmethod
    def of(cls, accumulation: Accumulation, devices: int = 1) -> "Window":
        """The window of *accumulation* where every one of *devices* computes a batch at a time."""
        return cls(
            accumulation.batches * devices, reduction=accumulation.reduction, leftover=accumulation.leftover
        )

    @property
    def full(self) -> bool:
        """Whether it holds *length* batches."""
        return self.batches >= self.length

    def add(self, gradients: Gradients, samples: int) -> None:
        """Take in the mean gradients of one batch of *samples*."""
        weight = samples if self.reduction == "mean" else 1
        scaled = list(gradients) if self.length == 1 else [_times(g, weight) for g in gradients]
        if self._sums:
            self._sums = [_plus(a, b) for a, b in zip(self._sums, scaled, strict=True)]
        else:
            self._sums = scaled
        self._samples += samples
        self.batches += 1

    def take(self) -> Gradients:
        """The mean over all samples in the window, or the sum over its batches; it is empty afterwards."""
        sums, samples = self._sums, self._samples
        self._clear()
        if self.length == 1 or self.reduction == "sum":
            return sums
        return [None if total is None else total.div_(samples) for total in sums]

    def end_epoch(self) -> "Gradients | None":
        """What is left to apply when an epoch ends; None where nothing is, or the rule is not to."""
        if not self.batches or self.leftover == "carry":
            return None
        if self.leftover == "flush":
            return self.take()
        self._clear()
        return None

    def state_dict(self) -> dict[str, Any]:
        """What is in the window: its counts, and the tensors under the number of their parameter."""
        present = {str(number): total for number, total in enumerate(self._sums) if total is not None}
        return {
            "batches": self.batches,
            "samples": self._samples,
            "parameters": len(self._sums),
            "sums": present,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a copy of what *state* holds. Raises `CheckpointError` where it is not of a window."""
        try:
            sums = {int(number): total.clone() for number, total in state["sums"].items()}
            self._sums = [sums.get(number) for number in range(state["parameters"])]
            self.batches, self._samples = int(state["batches"]), int(state["samples"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"an accumulation window's state has batches, samples, parameters and sums; this has "
                f"{sorted(state)}, and reading it failed with {error!r}: take a checkpoint of this version"
            ) from error

    def _clear(self) -> None:
        self.batches, self._samples, self._sums = 0, 0, []


def _times(gradient: "Tensor | None", weight: int) -> "Tensor | None":
    """A tensor of the window's own, which it may add to."""
    return None if gradient is None else gradient * weight


def _plus(total: "Tensor | None", gradient: "Tensor | None") -> "Tensor | None":
    if total is None or gradient is None:
        return gradient if total is None else total
    return total.add_(gradient)
