"""The sum of the gradients of all ranks, by the weight of the output of each."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import Weight, as_count
from stages.distributed.rank_group import RankGroup
from stages.optim.gradients import Accumulation, Gradients, Window


class GradientExchange:
    """One sum over the ranks of all gradients of *parameters*, with their weights, in one flat tensor.

    The tensor has the gradients of the parameters that are trained, then for each the number of ranks that
    have it, and the weight. It is float32, or float64 if a parameter is. A step may change which parameters
    are trained, on all ranks.
    """

    def __init__(self, group: RankGroup, parameters: Sequence[Tensor]) -> None:
        self._group = group
        self._parameters = parameters
        self._count = len(parameters)
        self._lay_out(self.find_trained())

    def find_trained(self) -> list[int]:
        """Return the places of the parameters that are trained, the same on all ranks."""
        return [number for number, parameter in enumerate(self._parameters) if parameter.requires_grad]

    def _lay_out(self, trained: list[int]) -> None:
        """Build the flat tensor for the parameters that are *trained*."""
        parameters, self._trained = self._parameters, trained
        self._dtypes = [parameters[number].dtype for number in trained]
        shapes = [parameters[number].shape for number in self._trained]
        sizes = [*(shape.numel() for shape in shapes), len(shapes), 1]
        wide = torch.float64 if torch.float64 in self._dtypes else torch.float32
        self._flat = torch.zeros(sum(sizes), dtype=wide, device=parameters[0].device)
        *parts, self._present, self._weight = torch.split(self._flat, sizes)
        self._is_wide = all(dtype is wide for dtype in self._dtypes)
        self._sums = self._flat[: -len(shapes) - 1]
        self._parts = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self._group.is_main

    @property
    def total_weight(self) -> float:
        """The sum of the weights in the last exchange."""
        return as_count(float(self._weight))

    def mean(
        self, gradients: Gradients, weight: Weight, *, weighted: bool, trained: Collection[int] = ()
    ) -> list[Tensor | None] | None:
        """Return the mean gradients of all ranks, of which this one has *gradients* with *weight*.

        *weighted* gradients are multiplied by their weight already, and parameters that were *trained* when
        they were computed may be frozen now. A gradient is None if no rank has it. There is no mean if the
        sum of the weights is 0. The tensors are valid until the next exchange.
        """
        missing = self._add(gradients, weight, trained, weighted=weighted)
        is_empty = not isinstance(weight, Tensor) and weight == 0
        if is_empty and not self._weight.item():
            return None
        self._sums.div_(self._weight)
        return self._result(missing)

    def sum(
        self, gradients: Gradients, weight: Weight, *, trained: Collection[int] = ()
    ) -> list[Tensor | None]:
        """Return the sum over all ranks of gradients that are multiplied by their weight, as new tensors.

        Parameters that were *trained* when they were computed may be frozen now.
        """
        missing = self._add(gradients, weight, trained, weighted=True)
        return [None if gradient is None else gradient.clone() for gradient in self._result(missing)]

    def _add(
        self, gradients: Gradients, weight: Weight, trained: Collection[int], *, weighted: bool
    ) -> list[int]:
        """Add the gradients of all ranks, and return the places of those that this rank does not have."""
        if (places := sorted({*self.find_trained(), *trained})) != self._trained:
            self._lay_out(places)  # a step has frozen parameters or freed them
        of_rank = [gradients[number] for number in self._trained] if gradients else [None] * len(self._parts)
        missing = [number for number, gradient in enumerate(of_rank) if gradient is None]
        present = [_check_dense(gradient) for gradient in of_rank if gradient is not None]
        with torch.no_grad():
            self._present.fill_(1)
            for number in missing:
                self._parts[number].zero_()
                self._present[number] = 0
            if present:
                pairs = zip(self._parts, of_rank, strict=True)
                torch._foreach_copy_([part for part, gradient in pairs if gradient is not None], present)
            if not weighted:
                self._sums.mul_(weight)
            self._weight.fill_(weight)
            self._group.sum(self._flat)
        return missing

    def _result(self, missing: Sequence[int]) -> list[Tensor | None]:
        """Return the sums by the places of the parameters; None for those that no rank has."""
        absent = {number for number in missing if not self._present[number].item()}
        result: list[Tensor | None] = [None] * self._count
        parts = self._parts if self._is_wide else list(map(Tensor.to, self._parts, self._dtypes))
        for number, place in enumerate(self._trained):
            if number not in absent:
                result[place] = parts[number]
        return result


def _check_dense(gradient: Tensor) -> Tensor:
    """Return *gradient*. Raises `BuilderError` if it is sparse or complex."""
    if gradient.layout is not torch.strided or gradient.is_complex():
        raise BuilderError(
            f"several ranks cannot add gradients of {gradient.layout} and {gradient.dtype}. Use layers with "
            "dense gradients of real numbers, or one device"
        )
    return gradient


class RankWindow(Window):
    """An accumulation window whose gradients the ranks add when it is full.

    With the reduction ``sum``, of the mean gradients of several batches, they add those of each batch.
    """

    def __init__(self, accumulation: Accumulation, exchange: GradientExchange) -> None:
        super().__init__(
            accumulation.batches, reduction=accumulation.reduction, leftover=accumulation.leftover
        )
        self._exchange = exchange
        self._adds_means = self.reduction == "sum" and self.length > 1
        self._trained: set[int] = set()
        """The parameters that a batch of the window has trained, by their places; the same on all ranks."""

    def add(self, gradients: Gradients, weight: Weight) -> None:
        """Add the mean gradients of this rank's share of a batch, whose output has *weight*."""
        if self.length > 1:
            self._trained.update(self._exchange.find_trained())
        if self._adds_means:
            mean = self._exchange.mean(gradients, weight, weighted=False)
            gradients = [
                None if gradient is None else gradient.clone() for gradient in mean or [None] * len(gradients)
            ]
            weight = self._exchange.total_weight
        super().add(gradients, weight)

    def take(self) -> "Gradients | None":
        """Return the mean over the weights of all ranks, or the sum over batches, and clear the window."""
        if self._adds_means:
            return super().take()
        sums, weight, trained = self._sums, self._weight, self._trained
        self._clear()
        return self._exchange.mean(sums, weight, weighted=self.length > 1, trained=trained)

    def collect(self) -> None:
        """Move the sums of all ranks to rank 0, so that its checkpoint has them; call it between epochs."""
        if not self.batches or self._adds_means:
            return
        self._sums = self._exchange.sum(self._sums, self._weight, trained=self._trained)
        self._weight = self._exchange.total_weight
        for number, total in enumerate(self._sums):  # of a gradient that only other ranks have had
            if total is not None:
                self._dtypes.setdefault(number, total.dtype)
        self._keep_on_main()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a copy of *state*, the sums of all ranks, on rank 0, as `collect` left them."""
        super().load_state_dict(state)
        self._trained = {number for number, total in enumerate(self._sums) if total is not None}
        if not self._adds_means:
            self._keep_on_main()

    def _keep_on_main(self) -> None:
        """Set the sums of the other ranks to 0."""
        if not self._exchange.is_main:
            self._sums, self._weight = [None] * len(self._sums), 0

    def _clear(self) -> None:
        super()._clear()
        self._trained = set()
