"""Accumulation of gradients over batches and ranks."""

from typing import Any

from stages.contracts.outputs import Weight
from stages.distributed.gradient_exchange import GradientExchange
from stages.optim.gradients import Accumulation, Gradients, Window


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
