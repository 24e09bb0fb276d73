"""Accumulation of the gradients of several batches."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stages.contracts.config import Config
from stages.contracts.errors import CheckpointError
from stages.contracts.fields import Count
from stages.contracts.outputs import Weight, as_count

if TYPE_CHECKING:
    from torch import Tensor, dtype

Gradients: TypeAlias = "Sequence[Tensor | None]"
"""One gradient for each parameter of a model, in their order; None if the loss does not depend on it."""

FLOAT32_BYTES = 4


class Accumulation(Config):
    """Gradient accumulation: how many batches form one optimizer step, and how they are combined."""

    batches: Count = 1
    reduction: Literal["mean", "sum"] = "mean"
    """``mean``: that of one large batch. ``sum``: as in Burn, the sum of the mean gradients of the batches,
    which grows with their number."""
    leftover: Literal["flush", "drop", "carry"] = "flush"
    """Treatment of a window that is not full at the end of an epoch. ``flush``: apply it, weighted by its
    content. ``drop``: discard it, as Burn does. ``carry``: continue it in the next epoch, and discard it
    after the last."""


class Totals:
    """The sums of an accumulation window in tensors that are the same for all windows, as in a CUDA graph.

    *weight* is that of a batch: a number if it is the same for all batches, or a tensor.
    """

    def __init__(self, gradients: Gradients, weight: Weight) -> None:
        self.sums: list[Tensor | None] = [_multiply(gradient, 1) for gradient in gradients]
        self.dtypes = {number: g.dtype for number, g in enumerate(gradients) if g is not None}
        self.weight = weight * 1
        """The weight of each batch; if it is a tensor, the sum of the weights in the window."""
        self.clear()

    def clear(self) -> None:
        """Set all sums to -0.0: a number that is added to it keeps its sign, also if it is 0."""
        for total in self.sums:
            if total is not None:
                total.fill_(-0.0)
        if not isinstance(self.weight, int | float):
            self.weight.zero_()


class Window:
    """An accumulation window, which sums the gradients of *length* batches.

    With ``mean``, the default, each batch counts with the weight of its output: up to rounding, the result
    equals the gradient of one large batch. A batch of weight 0 does not count. A window of one batch returns
    its gradients unchanged.

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
        self.taken_weight: Weight = 0
        """The weight of the gradients that `take` returned last."""
        self._weight: Weight = 0
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

    def add(self, gradients: Gradients, weight: Weight) -> None:
        """Add the mean gradients of one batch, whose output has *weight*."""
        if self.length == 1:  # `take` returns the gradients unchanged
            self._sums, self._weight, self.batches = list(gradients), weight, 1
            return
        scaled = self._weigh(gradients, weight)
        if self._sums:
            self._sums = [_add(a, b) for a, b in zip(self._sums, scaled, strict=True)]
        else:
            self._sums = scaled
        self._dtypes.update((n, g.dtype) for n, g in enumerate(gradients) if g is not None)
        self._weight = self._weight + weight
        self.batches += 1

    def take(self) -> "Gradients | None":
        """Return the mean over the batches by their weights, or their sum, and clear the window.

        None if all weights are 0. The weight of the window is then `taken_weight`; one on an accelerator is
        not read, and the gradients of a weight of 0 are not to be applied.
        """
        sums, dtypes, weight = self._sums, self._dtypes, self._weight
        self.batches, self._weight, self._sums, self._dtypes = 0, 0, [], {}
        self.taken_weight = weight
        if not (weight if type(weight) is int else _may_count(weight)):
            return None
        return sums if self.length == 1 else self._reduce(sums, dtypes, weight)

    def add_on_device(self, totals: "Totals", gradients: Gradients, weight: Weight) -> None:
        """Add the mean gradients of one batch to *totals* without counting it. A CUDA graph may record it."""
        for total, scaled in zip(totals.sums, self._weigh(gradients, weight), strict=True):
            _add(total, scaled)
        if isinstance(weight, int | float):
            totals.weight = weight  # a shorter batch may have come before
        else:
            totals.weight += weight

    def take_on_device(self, totals: "Totals") -> Gradients:
        """Return what `take` does for a window whose batches were all added to *totals*."""
        return self._reduce(totals.sums, totals.dtypes, self._weight_of(totals, self.length))

    def count(self, totals: "Totals") -> None:
        """Count a batch that `add_on_device` added to *totals*; clear a full window."""
        self.batches += 1
        self._weight = self._weight_of(totals, self.batches)
        self._sums, self._dtypes = totals.sums, dict(totals.dtypes)
        if self.full:
            self._clear()

    def holds(self, totals: "Totals") -> bool:
        """Return whether all batches of the window were added to *totals*."""
        weight = self._weight_of(totals, self.batches)
        is_same = self._weight is weight if not isinstance(weight, int | float) else self._weight == weight
        return self.batches == 0 or (self._sums is totals.sums and bool(is_same))

    @staticmethod
    def _weight_of(totals: "Totals", batches: int) -> Weight:
        """Return the weight of *batches* batches in *totals*."""
        weight = totals.weight
        return weight * batches if isinstance(weight, int | float) else weight

    def collect(self) -> None:
        """Do nothing: one rank has the sums of all batches."""

    def end_epoch(self) -> "Gradients | None":
        """Return the gradients to apply at the end of an epoch, or None if it has none."""
        if not self.batches or self.leftover == "carry":
            return None
        if self.leftover == "flush":
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
            "samples": as_count(float(self._weight)),
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
            dtyped = {**state["sums"], **state["halves"]}
            self._dtypes = {int(number): tensor.dtype for number, tensor in dtyped.items()}
            self._sums = [sums.get(number) for number in range(state["parameters"])]
            self.batches, self._weight = int(state["batches"]), as_count(state["samples"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of an accumulation window has batches, samples, parameters, sums, halves; found "
                f"{sorted(state)}, and reading it raised {error!r}. Use a checkpoint of this version"
            ) from error

    def _weigh(self, gradients: Gradients, weight: Weight) -> "list[Tensor | None]":
        """Return the part of *gradients* in the sums, as new tensors; None or 0 if *weight* is 0."""
        if not _may_count(weight):
            return [None] * len(gradients)
        scaled = [_multiply(gradient, weight if self.reduction == "mean" else 1) for gradient in gradients]
        if not isinstance(weight, int | float):
            for gradient in scaled:
                if gradient is not None:
                    gradient.masked_fill_(weight == 0, 0.0)
        return scaled

    def _reduce(
        self, sums: "list[Tensor | None]", dtypes: "dict[int, dtype]", weight: Weight
    ) -> "list[Tensor | None]":
        if self.reduction == "mean":
            sums = [None if total is None else _divide(total, weight) for total in sums]
        return [None if total is None else total.to(dtypes[number]) for number, total in enumerate(sums)]

    def _clear(self) -> None:
        self.batches, self._weight, self._sums, self._dtypes = 0, 0, [], {}


def _may_count(weight: Weight) -> bool:
    """Return whether *weight* is above 0, or is a tensor on an accelerator, which is not read."""
    return not isinstance(weight, int | float) or bool(weight > 0)


def _multiply(gradient: "Tensor | None", weight: Weight) -> "Tensor | None":
    """Return *weight* times *gradient* as a new tensor, in float32 if *gradient* has half precision."""
    if gradient is None:
        return None
    is_half = gradient.is_floating_point() and gradient.element_size() < FLOAT32_BYTES
    return (gradient.float() if is_half else gradient) * weight


def _divide(total: "Tensor", weight: Weight) -> "Tensor":
    """Divide *total* by *weight* in place; on an accelerator as torch divides by a number."""
    if isinstance(weight, int | float):
        return total.div_(weight)
    return total.mul_(weight.to(total.dtype).reciprocal())


def _add(total: "Tensor | None", gradient: "Tensor | None") -> "Tensor | None":
    if total is None or gradient is None:
        return gradient if total is None else total
    if total.device != gradient.device:  # a restored window is on the CPU
        total = total.to(gradient.device)
    return total.add_(gradient)
