"""Gradients of several batches as one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError
from stages.contracts.fields import Count

if TYPE_CHECKING:
    from torch import Tensor, dtype

Gradients: TypeAlias = "Sequence[Tensor | None]"
"""One for each parameter of a model, in their order; none where the loss does not depend on it."""

SINGLE_BYTES = 4


class Accumulation(Config):
    """How many batches make one step of the optimizer, and how."""

    batches: Count = 1
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

    Half-precision gradients are summed in float32, and handed on in their own dtype.
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
        self._dtypes: dict[int, dtype] = {}

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
        self._dtypes.update((n, g.dtype) for n, g in enumerate(gradients) if g is not None)
        self._samples += samples
        self.batches += 1

    def take(self) -> Gradients:
        """The mean over all samples in the window, or the sum over its batches; it is empty afterwards.

        Where the mean is over no samples, there is none: every gradient is None.
        """
        sums, dtypes, divisor = self._sums, self._dtypes, self._samples
        has_mean = self._has_mean
        self._clear()
        if self.length == 1:
            return sums
        if not has_mean:
            return [None] * len(sums)
        if self.reduction == "mean":
            sums = [None if total is None else total.div_(divisor) for total in sums]
        return [None if total is None else total.to(dtypes[number]) for number, total in enumerate(sums)]

    def end_epoch(self) -> "Gradients | None":
        """What is left to apply when an epoch ends; None where nothing is, or the rule is not to."""
        if not self.batches or self.leftover == "carry":
            return None
        if self.leftover == "flush" and self._has_mean:
            return self.take()
        self._clear()
        return None

    def state_dict(self) -> dict[str, Any]:
        """What is in the window: its counts, and the tensors under the number of their parameter.

        Under ``halves`` an empty tensor stands for the dtype of a gradient whose sum has another.
        """
        present = {str(number): total for number, total in enumerate(self._sums) if total is not None}
        return {
            "batches": self.batches,
            "samples": self._samples,
            "parameters": len(self._sums),
            "sums": present,
            "halves": {
                number: total.new_empty(0, dtype=self._dtypes[int(number)])
                for number, total in present.items()
                if total.dtype != self._dtypes[int(number)]
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a copy of what *state* holds. Raises `CheckpointError` where it is not of a window."""
        try:
            sums = {int(number): total.clone() for number, total in state["sums"].items()}
            dtyped = {**state["sums"], **state.get("halves", {})}  # older checkpoints have no halves
            self._dtypes = {int(number): tensor.dtype for number, tensor in dtyped.items()}
            self._sums = [sums.get(number) for number in range(state["parameters"])]
            self.batches, self._samples = int(state["batches"]), int(state["samples"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"an accumulation window's state has batches, samples, parameters and sums; this has "
                f"{sorted(state)}, and reading it failed with {error!r}: take a checkpoint of this version"
            ) from error

    @property
    def _has_mean(self) -> bool:
        """False where `take` would divide by no samples."""
        return self.length == 1 or self.reduction == "sum" or self._samples > 0

    def _clear(self) -> None:
        self.batches, self._samples, self._sums, self._dtypes = 0, 0, [], {}


def _times(gradient: "Tensor | None", weight: int) -> "Tensor | None":
    """A tensor of the window's own, which it may add to; of halves in float32, where sums find room."""
    if gradient is None:
        return None
    is_half = gradient.is_floating_point() and gradient.element_size() < SINGLE_BYTES
    return (gradient.float() if is_half else gradient) * weight


def _plus(total: "Tensor | None", gradient: "Tensor | None") -> "Tensor | None":
    if total is None or gradient is None:
        return gradient if total is None else total
    if total.device != gradient.device:  # a window that was restored came to the CPU
        total = total.to(gradient.device)
    return total.add_(gradient)
