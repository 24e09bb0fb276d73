"""Accumulation of the gradients of several batches."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError
from stages.contracts.fields import Count

if TYPE_CHECKING:
    from torch import Tensor, dtype

Gradients: TypeAlias = "Sequence[Tensor | None]"
"""One gradient for each parameter of a model, in their order; None if the loss does not depend on it."""

FLOAT32_BYTES = 4


class Accumulation(Config):
    """Gradient accumulation: how many batches form one optimizer step, and how they are combined."""

    batches: Count = 1
    reduction: Literal["mean", "sum"] = "mean"
    """``mean``: every sample has the same weight, as in one large batch. ``sum``: as in Burn, the sum of the
    mean gradients of the batches, which grows with their number."""
    leftover: Literal["flush", "drop", "carry"] = "flush"
    """Treatment of a window that is not full at the end of an epoch. ``flush``: apply it, weighted by its
    samples. ``drop``: discard it, as Burn does. ``carry``: continue it in the next epoch, and discard it
    after the last."""


class Totals:
    """The sums of an accumulation window in tensors that are the same for all windows, as in a CUDA graph."""

    def __init__(self, gradients: Gradients) -> None:
        self.sums: list[Tensor | None] = [_weight(gradient, 1) for gradient in gradients]
        self.dtypes = {number: g.dtype for number, g in enumerate(gradients) if g is not None}
        self.clear()

    def clear(self) -> None:
        """Set all sums to -0.0: a number that is added to it keeps its sign, also if it is 0."""
        for total in self.sums:
            if total is not None:
                total.fill_(-0.0)


class Window:
    """An accumulation window, which sums the gradients of *length* batches.

    With ``mean``, the default, a batch is weighted by its samples, or by the ``weight`` of its output: up to
    rounding, the result equals the gradient of one large batch. A window of one batch returns its gradients
    unchanged.

    Half-precision gradients are summed in float32 and returned in their own dtype.
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
        self._samples: int | Tensor = 0
        self._sums: list[Tensor | None] = []
        self._dtypes: dict[int, dtype] = {}

    @classmethod
    def of(cls, accumulation: Accumulation) -> "Window":
        """Return the window of *accumulation*."""
        return cls(accumulation.batches, reduction=accumulation.reduction, leftover=accumulation.leftover)

    @property
    def full(self) -> bool:
        """True if the window holds *length* batches."""
        return self.batches >= self.length

    def add(self, gradients: Gradients, samples: "int | Tensor") -> None:
        """Add the mean gradients of one batch of *samples* samples or tokens."""
        if self.length == 1:  # `take` returns the gradients unchanged
            self._sums, self._samples, self.batches = list(gradients), samples, 1
            return
        scaled = self._weigh(gradients, samples)
        if self._sums:
            self._sums = [_add(a, b) for a, b in zip(self._sums, scaled, strict=True)]
        else:
            self._sums = scaled
        self._dtypes.update((n, g.dtype) for n, g in enumerate(gradients) if g is not None)
        self._samples += samples
        self.batches += 1

    def take(self) -> Gradients:
        """Return the mean over all samples in the window, or the sum over its batches, and clear the window.

        If the window has no samples, there is no mean, and every gradient is None.
        """
        sums, dtypes, divisor = self._sums, self._dtypes, self._samples
        has_mean = self._has_mean
        self._clear()
        if self.length == 1:
            return sums
        return self._reduce(sums, dtypes, divisor) if has_mean else [None] * len(sums)

    def add_on_device(self, totals: "Totals", gradients: Gradients, samples: int) -> None:
        """Add the mean gradients of one batch to *totals* without counting it. A CUDA graph may record it."""
        for total, scaled in zip(totals.sums, self._weigh(gradients, samples), strict=True):
            _add(total, scaled)

    def take_on_device(self, totals: "Totals", samples: int) -> Gradients:
        """Return what `take` does for a window of *samples* samples that was added to *totals*."""
        return self._reduce(totals.sums, totals.dtypes, samples)

    def count(self, totals: "Totals", samples: int) -> None:
        """Count a batch of *samples* samples that `add_on_device` added to *totals*; clear a full window."""
        self.batches += 1
        self._samples += samples
        self._sums, self._dtypes = totals.sums, dict(totals.dtypes)
        if self.full:
            self._clear()

    def holds(self, totals: "Totals", samples: int) -> bool:
        """Return whether all batches of the window, of *samples* samples each, were added to *totals*."""
        return self.batches == 0 or (
            self._sums is totals.sums and int(self._samples) == self.batches * samples
        )

    def collect(self) -> None:
        """Do nothing: one rank has the sums of all batches."""

    def end_epoch(self) -> "Gradients | None":
        """Return the gradients to apply at the end of an epoch, or None if it has none."""
        if not self.batches or self.leftover == "carry":
            return None
        if self.leftover == "flush" and self._has_mean:
            return self.take()
        self._clear()
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the sums of the window, with each sum under the index of its parameter.

        If a gradient has another dtype than its sum, ``halves`` contains an empty tensor of that dtype.
        """
        present = {str(number): total for number, total in enumerate(self._sums) if total is not None}
        return {
            "batches": self.batches,
            "samples": int(self._samples),
            "parameters": len(self._sums),
            "sums": present,
            "halves": {
                number: total.new_empty(0, dtype=self._dtypes[int(number)])
                for number, total in present.items()
                if total.dtype != self._dtypes[int(number)]
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a copy of *state*. Raises `CheckpointError` if it is not the state of a window."""
        try:
            sums = {int(number): total.clone() for number, total in state["sums"].items()}
            dtyped = {**state["sums"], **state.get("halves", {})}  # older checkpoints have no halves
            self._dtypes = {int(number): tensor.dtype for number, tensor in dtyped.items()}
            self._sums = [sums.get(number) for number in range(state["parameters"])]
            self.batches, self._samples = int(state["batches"]), int(state["samples"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of an accumulation window has batches, samples, parameters and sums; found "
                f"{sorted(state)}, and reading it raised {error!r}. Use a checkpoint of this version"
            ) from error

    def _weigh(self, gradients: Gradients, samples: "int | Tensor") -> "list[Tensor | None]":
        weight = samples if self.reduction == "mean" else 1
        return [_weight(gradient, weight) for gradient in gradients]

    def _reduce(
        self, sums: "list[Tensor | None]", dtypes: "dict[int, dtype]", samples: "int | Tensor"
    ) -> "list[Tensor | None]":
        if self.reduction == "mean":
            sums = [None if total is None else total.div_(samples) for total in sums]
        return [None if total is None else total.to(dtypes[number]) for number, total in enumerate(sums)]

    @property
    def _has_mean(self) -> bool:
        """False if `take` would divide by zero samples."""
        return self.length == 1 or self.reduction == "sum" or bool(self._samples > 0)

    def _clear(self) -> None:
        self.batches, self._samples, self._sums, self._dtypes = 0, 0, [], {}


def _weight(gradient: "Tensor | None", weight: "int | Tensor") -> "Tensor | None":
    """Return *weight* times *gradient* as a new tensor, in float32 if *gradient* has half precision."""
    if gradient is None:
        return None
    is_half = gradient.is_floating_point() and gradient.element_size() < FLOAT32_BYTES
    return (gradient.float() if is_half else gradient) * weight


def _add(total: "Tensor | None", gradient: "Tensor | None") -> "Tensor | None":
    if total is None or gradient is None:
        return gradient if total is None else total
    if total.device != gradient.device:  # a restored window is on the CPU
        total = total.to(gradient.device)
    return total.add_(gradient)
