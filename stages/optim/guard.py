"""Keeps NaN and infinity away from the weights."""

import cmath
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import CheckpointError, StageError
from stages.contracts.outputs import TrainOutput
from stages.optim.gradients import Gradients
from stages.optim.non_finite import NonFinite

SHOWN = 5
ADVICE = "It has not reached the weights. Lower the learning rate, clip the gradients, look for bad samples"

log = logging.getLogger(__name__)


class NonFiniteError(StageError):
    """A NaN or infinity in the loss or a gradient, found before it reached the weights."""


class Guard:
    """Lets a batch pass whose loss and gradients are finite; what about another, *rule* says.

    On an accelerator this is the one place of a step that waits for the device.
    """

    def __init__(self, rule: NonFinite, names: Sequence[str]) -> None:
        self.rule = rule
        self.names = tuple(names)
        """The names of the parameters, in the order of their gradients."""
        self.skipped = 0
        """How many batches were skipped in a row."""
        self.skipped_sums = 0
        """How many sums of several batches were skipped in a row."""

    def passes(self, step: TrainOutput[Any], epoch: int, iteration: int) -> bool:
        """Whether *step* may change the weights.

        Raises `NonFiniteError`, naming the tensors, where it must not and the rule is to stop, or where too
        many batches in a row were skipped.
        """
        found = self._non_finite(step.item.loss, step.gradients)
        self.skipped = self.skipped + 1 if found else 0
        if found:
            self._skip(f"epoch {epoch}, batch {iteration}: {_listed(found)}", "batch", self.skipped)
        return not found

    def passes_sum(self, gradients: Gradients, epoch: int, iteration: int) -> bool:
        """Return whether *gradients*, accumulated over batches that passed, may change the weights.

        A sum of finite gradients may overflow. Raises `NonFiniteError` as `passes` does; its limit counts
        updates here.
        """
        found = self._non_finite(torch.zeros(()), gradients)
        self.skipped_sums = self.skipped_sums + 1 if found else 0
        if found:
            where = f"epoch {epoch}, batch {iteration}, accumulated gradients: {_listed(found)}"
            self._skip(where, "update", self.skipped_sums)
        return not found

    def _skip(self, where: str, what: str, skipped: int) -> None:
        """Log that a batch or an update is skipped. Raises `NonFiniteError` if it must not be."""
        if self.rule.kind == "stop":
            raise NonFiniteError(
                f"{where}. {ADVICE}, or pass over such batches with non_finite: {{kind: skip}}"
            )
        if skipped > self.rule.limit:
            plural = {"batch": "batches", "update": "updates"}[what]
            raise NonFiniteError(
                f"{where}, after {self.rule.limit} skipped {plural} in a row, non_finite's limit. {ADVICE}"
            )
        log.warning("%s; this %s is skipped, %d in a row", where, what, skipped)

    def state_dict(self) -> dict[str, Any]:
        """The batches skipped in a row, so that a resumed run stops where an unbroken one does."""
        sums = {"skipped_sums": self.skipped_sums} if self.skipped_sums else {}
        return {"skipped": self.skipped, **sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from *state*. Raises `CheckpointError` where it is not a guard's."""
        if not isinstance(state.get("skipped"), int):
            raise CheckpointError(f"a guard's state has 'skipped', this one is {state}")
        self.skipped, self.skipped_sums = state["skipped"], state.get("skipped_sums", 0)

    def _non_finite(self, loss: Tensor, gradients: Gradients) -> list[tuple[str, str]]:
        """Return what is not finite; exact, also for finite numbers whose sum is not."""
        return [] if _all_finite(loss, gradients) else list(self._found(loss, gradients))

    def _found(self, loss: Tensor, gradients: Gradients) -> Iterator[tuple[str, str]]:
        """What the loss and each gradient hold that is not finite, and its name; exact, and slow."""
        for name, tensor in [("loss", loss), *zip(self.names, gradients, strict=True)]:
            if tensor is None:
                continue
            dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
            if dense.isnan().any():
                yield name, "NaN"
            elif not dense.isfinite().all():
                yield name, "infinity"


def _all_finite(loss: Tensor, gradients: Gradients) -> bool:
    """True only where everything is finite; False also where a sum of finite numbers overflows.

    A NaN or infinity stays in any sum and any norm, so one number a tensor is enough to look at.
    """
    present = [gradient for gradient in gradients if gradient is not None]
    on_cpu = all(tensor.is_cpu for tensor in (loss, *present[:1]))
    return _finite_sums(loss, present) if on_cpu else _finite_norms(loss, present)


def _finite_sums(loss: Tensor, gradients: list[Tensor]) -> bool:
    """Reads one number after another, which costs next to nothing on a CPU."""
    return cmath.isfinite(sum([gradient.sum().item() for gradient in gradients], loss.item()))


def _finite_norms(loss: Tensor, gradients: list[Tensor]) -> bool:
    """Few kernels, and waits for the device once; the loss may be on another one than the gradients."""
    if not gradients:
        return bool(loss.detach().isfinite().all())
    dense = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    norms = torch._foreach_norm(dense)  # noqa: SLF001  one kernel for all
    device = norms[0].device
    return bool(torch.stack([each.to(device) for each in (loss.detach(), *norms)]).isfinite().all())


def _listed(found: list[tuple[str, str]]) -> str:
    shown = ", ".join(f"{what} in {name}" for name, what in found[:SHOWN])
    return shown if len(found) <= SHOWN else f"{shown} and {len(found) - SHOWN} more"
