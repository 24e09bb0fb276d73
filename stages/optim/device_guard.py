"""A guard that checks on the accelerator, so that no step waits for the device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stages.contracts.outputs import TrainOutput, Weight
from stages.optim.config import NonFinite
from stages.optim.gradients import Gradients
from stages.optim.guard import Guard, NonFiniteError, format_found, stop_error
from stages.optim.loss_scaler import LossScaler

MAX_RECORDED_STEPS = 128
"""Steps and accumulated updates that are recorded before the flag is read."""


class DeviceGuard(Guard):
    """A guard with the rule ``stop`` whose flag is a tensor on the device.

    Each step computes a row with the loss and the greatest magnitude of each gradient, and sets the flag if
    one is not finite. The kernel of the optimizer reads the flag and skips the update, from the bad batch on.
    The host reads the flag later, and only then finds the batch and its tensors in the rows.

    A weight of 0 sets the flag for one update. So does an overflow in fp16 that *scaler* absorbs, which must
    not be accumulated with other batches.
    """

    def __init__(self, names: Sequence[str], device: torch.device, scaler: LossScaler | None = None) -> None:
        super().__init__(NonFinite(), names, scaler)
        flags = torch.zeros((3,), dtype=torch.float32, device=device).unbind()
        self._flag, self._kernel_flag, self._zero = flags
        self.flag = self._flag if scaler is None else self._kernel_flag
        self._recorded: list[tuple[int, int, str, Tensor]] = []

    def passes(self, step: TrainOutput[Any], epoch: int, iteration: int, weight: Weight = 1) -> bool:
        """Record *step*, and return True: the flag decides about the update."""
        if isinstance(weight, Tensor) or weight:
            self.record(self.measure(step, weight), epoch, iteration)
        else:
            self.absorb_overflow()
        return True

    def passes_sum(self, gradients: Gradients, epoch: int, iteration: int, weight: Weight = 1) -> bool:
        """Record the accumulated *gradients*, and return True."""
        self.record_sum(self.measure_sum(gradients, weight), epoch, iteration)
        return True

    def measure(self, step: TrainOutput[Any], weight: Weight = 1) -> Tensor:
        """Set the flag by *step*, and return its row. A CUDA graph may record it."""
        absorbed = None if self._scaler is None else self._scaler.absorb_overflow()
        return self._measure(step.item.loss, step.gradients, weight, absorbed)

    def measure_sum(self, gradients: Gradients, weight: Weight = 1) -> Tensor:
        """Set the flag by the accumulated *gradients*, and return their row."""
        return self._measure(self._zero, gradients, weight)

    def record(self, row: Tensor, epoch: int, iteration: int) -> None:
        """Keep the *row* of a step, until the flag is read."""
        self._record(row, epoch, iteration, "")

    def record_sum(self, row: Tensor, epoch: int, iteration: int) -> None:
        """Keep the *row* of accumulated gradients, until the flag is read."""
        self._record(row, epoch, iteration, ", accumulated gradients")

    def find_error(self) -> tuple[int, NonFiniteError] | None:
        """Return the batch of the first row that is not finite, and the error to raise; None if all are.

        Waits for the device. Forgets the rows if all are finite.
        """
        is_flagged = bool(self._recorded) and bool(self._flag.item())
        rows = torch.stack([row for *_, row in self._recorded]).tolist() if is_flagged else []
        for (epoch, iteration, what, _), row in zip(self._recorded, rows, strict=False):
            problems = list(_name_non_finite(("loss", *self.names), row))
            if problems:
                return iteration, stop_error(
                    f"epoch {epoch}, batch {iteration}{what}: {format_found(problems)}"
                )
        self._recorded.clear()
        return None

    def forget_steps(self, last: int) -> None:
        """Forget the recorded steps until the iteration *last*, all of which were finite."""
        self._recorded = [record for record in self._recorded if record[1] > last]

    def _record(self, row: Tensor, epoch: int, iteration: int, what: str) -> None:
        if len(self._recorded) == MAX_RECORDED_STEPS and (error := self.find_error()):
            raise error[1]
        self._recorded.append((epoch, iteration, what, row))

    def _measure(
        self, loss: Tensor, gradients: Gradients, weight: Weight, absorbed: Tensor | None = None
    ) -> Tensor:
        values = {
            number: _values(gradient) for number, gradient in enumerate(gradients) if gradient is not None
        }
        present = {number: entries for number, entries in values.items() if entries.numel()}
        loss = loss.detach().to(self._flag.device).reshape(())
        is_wide = any(tensor.dtype == torch.float64 for tensor in (loss, *present.values()))
        dtype = torch.float64 if is_wide else torch.float32
        magnitudes = [loss.to(dtype), *[self._zero.to(dtype)] * len(self.names)]
        for number, norm in zip(present, _largest_magnitudes([*present.values()], dtype), strict=True):
            magnitudes[number + 1] = norm
        row = torch.stack(magnitudes)
        if absorbed is not None:
            row[1:].masked_fill_(absorbed > 0, 0.0)
        if isinstance(weight, Tensor):
            empty = (weight == 0).to(self._flag)
            row.masked_fill_(empty > 0, 0.0)
            absorbed = empty if absorbed is None else torch.maximum(empty, absorbed)
        greatest = torch.linalg.vector_norm(row, float("inf"))  # keeps a NaN
        torch.logical_or(self._flag, greatest - greatest, out=self._flag)  # NaN - NaN and ∞ - ∞ are NaN
        self.flag = self._flag if absorbed is None else self._kernel_flag
        if absorbed is not None:
            torch.maximum(self._flag, absorbed, out=self._kernel_flag)
        return row


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _largest_magnitudes(gradients: list[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Return the infinity norm of each of *gradients*; a maximum cannot overflow, and keeps a NaN."""
    if not gradients:
        return []
    return torch._foreach_norm(gradients, float("inf"), dtype=dtype)  # noqa: SLF001  one kernel for all


def _name_non_finite(names: Sequence[str], row: Sequence[float]) -> Any:
    """Yield the name and kind of each value in *row* that is not finite."""
    for name, value in zip(names, row, strict=True):
        if value != value:
            yield name, "NaN"
        elif abs(value) == float("inf"):
            yield name, "infinity"
