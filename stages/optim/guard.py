"""A guard that keeps NaN and infinity from reaching the weights."""

import cmath
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import CheckpointError, StageError
from stages.contracts.outputs import TrainOutput, Weight
from stages.contracts.text import join_names
from stages.optim.config import NonFinite
from stages.optim.gradients import Gradients
from stages.optim.mixed_precision import LossScaler

MAX_LISTED_TENSORS = 5
ADVICE = "The weights are unchanged. Lower the learning rate, clip the gradients, or look for invalid samples"

log = logging.getLogger(__name__)


MAX_RECORDED_STEPS = 128
"""Steps and accumulated updates that are recorded before the flag is read."""


class NonFiniteError(StageError):
    """A NaN or infinity in the loss or a gradient, found before it reached the weights."""


class Guard:
    """A filter that accepts batches with a finite loss and finite gradients, and treats others by *rule*.

    On an accelerator, this is the only point of a step that waits for the device.
    """

    def __init__(self, rule: NonFinite, names: Sequence[str], scaler: LossScaler | None = None) -> None:
        self.rule = rule
        self.flag: Tensor | None = None
        """A tensor on the device that makes the kernel of the optimizer skip updates; None: no kernel reads
        one, and `passes` decides."""
        self.overflowed = False
        """True if the gradients of the last batch overflowed in fp16; the batch is then left out."""
        self._scaler = scaler
        self.names = tuple(names)
        """The names of the parameters, in the order of their gradients."""
        self.skipped = 0
        """The number of consecutive batches that were skipped."""
        self.skipped_sums = 0
        """The number of consecutive accumulated updates that were skipped."""

    def passes(self, step: TrainOutput[Any], epoch: int, iteration: int, weight: Weight = 1) -> bool:
        """Return whether *step* is valid; it may change the weights unless `overflowed` is then true.

        One whose output has a *weight* of 0 is valid, whatever its loss.

        Raises `NonFiniteError`, which names the tensors, if it is not and the rule is to stop, or if too
        many consecutive batches were skipped.
        """
        if self._scaler is not None:
            self.absorb_overflow()
        if not weight:
            return True
        gradients = () if self.overflowed else step.gradients
        if _all_finite(step.item.loss, gradients) or not (
            problems := list(self._find(step.item.loss, gradients))
        ):
            self.skipped = 0
            return True
        self.skipped += 1
        self._skip(f"epoch {epoch}, batch {iteration}: {format_found(problems)}", "batch", self.skipped)
        return False

    def absorb_overflow(self) -> None:
        """Set `overflowed`, and update the scale of the loss; call it once for a batch without samples."""
        self.overflowed = self._scaler is not None and bool(self._scaler.absorb_overflow())

    def passes_sum(
        self,
        gradients: Gradients,
        epoch: int,
        iteration: int,
        weight: Weight = 1,  # noqa: ARG002  on the host it is not 0
    ) -> bool:
        """Return whether *gradients*, accumulated over batches that passed, may change the weights.

        A sum of finite gradients may overflow. Raises `NonFiniteError` as `passes` does; the limit then
        counts updates.
        """
        zero = torch.zeros((), device="cpu")
        problems = [] if _all_finite(zero, gradients) else list(self._find(zero, gradients))
        self.skipped_sums = self.skipped_sums + 1 if problems else 0
        if problems:
            where = f"epoch {epoch}, batch {iteration}, accumulated gradients: {format_found(problems)}"
            self._skip(where, "update", self.skipped_sums)
        return not problems

    def _skip(self, where: str, what: str, skipped: int) -> None:
        """Log that a batch or an update is skipped. Raises `NonFiniteError` if it must not be."""
        if self.rule.kind == "stop":
            raise stop_error(where)
        if skipped > self.rule.limit:
            plural = {"batch": "batches", "update": "updates"}[what]
            raise NonFiniteError(
                f"{where}, after {self.rule.limit} consecutive skipped {plural}, the limit of non_finite. "
                f"{ADVICE}"
            )
        log.warning("%s; this %s is skipped, %d in a row", where, what, skipped)

    def find_error(self) -> tuple[int, NonFiniteError] | None:
        """Return the batch and the error that `flag` stands for, if the flag is set. Here: None."""
        return None

    def forget_steps(self, last: int) -> None:
        """Forget the steps until the iteration *last*. This guard sets no flag, so it does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of skipped batches, so that a resumed run stops at the same batch."""
        sums = {"skipped_sums": self.skipped_sums} if self.skipped_sums else {}
        return {"skipped": self.skipped, **sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts in *state*. Raises `CheckpointError` if it is not the state of a guard."""
        if not isinstance(state.get("skipped"), int):
            raise CheckpointError(
                f"the state of a guard has the key 'skipped'; found {state}. Use a checkpoint of this version"
            )
        self.skipped, self.skipped_sums = state["skipped"], state.get("skipped_sums", 0)

    def _find(self, loss: Tensor, gradients: Gradients) -> Iterator[tuple[str, str]]:
        """Yield the name of each tensor with a non-finite element, and its kind; exact, but slow."""
        for name, tensor in [("loss", loss), *zip(self.names, gradients, strict=bool(gradients))]:
            if tensor is None:
                continue
            values = _values(tensor.detach())
            if values.isnan().any():
                yield name, "NaN"
            elif not values.isfinite().all():
                yield name, "infinity"


def _all_finite(loss: Tensor, gradients: Gradients) -> bool:
    """Return True only if all elements are finite; False also if a sum of finite numbers overflows.

    NaN and infinity propagate through sums and norms, so one number per tensor is enough. On a CPU it is read
    at once; elsewhere all are read together.
    """
    if not loss.is_cpu:
        return _finite_norms(loss, gradients)
    total = loss.item()
    for gradient in gradients:
        if gradient is not None:
            if not gradient.is_cpu:
                return _finite_norms(loss, gradients)
            total += gradient.sum().item()
    return cmath.isfinite(total)


def _finite_norms(loss: Tensor, gradients: Gradients) -> bool:
    """Check all norms with few kernels and one synchronization; the loss may be on a different device."""
    dense = [_values(gradient) for gradient in gradients if gradient is not None]
    if not dense:
        return bool(loss.detach().isfinite().all())
    norms = torch._foreach_norm(dense)  # noqa: SLF001  one kernel for all
    device = norms[0].device
    return bool(torch.stack([tensor.to(device) for tensor in (loss.detach(), *norms)]).isfinite().all())


def stop_error(where: str) -> NonFiniteError:
    """Return the error of the rule ``stop``."""
    return NonFiniteError(f"{where}. {ADVICE}. To leave such batches out, set non_finite: {{kind: skip}}")


def format_found(problems: list[tuple[str, str]]) -> str:
    """Return *problems*, pairs of a tensor's name and a kind, as text."""
    return join_names((f"{what} in {name}" for name, what in problems), MAX_LISTED_TENSORS)


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

    def record(self, row: Tensor, epoch: int, iteration: int, what: str = "") -> None:
        """Keep the *row* of a step, until the flag is read; *what* is its part in the message of an error."""
        if len(self._recorded) == MAX_RECORDED_STEPS and (error := self.find_error()):
            raise error[1]
        self._recorded.append((epoch, iteration, what, row))

    def record_sum(self, row: Tensor, epoch: int, iteration: int) -> None:
        """Keep the *row* of accumulated gradients, until the flag is read."""
        self.record(row, epoch, iteration, ", accumulated gradients")

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
