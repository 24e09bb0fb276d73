"""Mixed precision: a step runs under autocast, and its backward pass outside it, scaled for fp16."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.fields import FastPath, Precision
from stages.contracts.outputs import Weight
from stages.optim.torch_patches import check

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR, BACKOFF_FACTOR = 2.0, 0.5
GROWTH_INTERVAL = 2000
"""Steps without an overflow after which the scale grows; all values are those of `torch.amp.GradScaler`."""
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of autocast by the precision; in ``f32`` and ``tf32`` all tensors are float32."""


ONE = torch.ones((), dtype=torch.float32, device="cpu")
"""The gradient of most losses, which takes longer to create than the other work of this call."""
ONE_MEMORY = ONE.numpy().data
"""The memory of `ONE`, which a hook may have changed in place."""
ENGINE: Any = Variable._execution_engine  # noqa: SLF001  no public name


def choose_backward(fast_path: FastPath) -> Callable[[Tensor], None]:
    """Return what adds the gradients of a loss, a tensor of one element, to ``.grad`` of its parameters.

    Raises `StageError` if the installed PyTorch has another engine than expected.
    """
    if fast_path == "off":
        return Tensor.backward
    check()
    return run_backward


def run_backward(loss: Tensor) -> None:
    """Do what ``loss.backward()`` does, without the parsing of its arguments, which takes 15 µs."""
    is_plain = type(loss) is Tensor
    if is_plain and loss.dtype is torch.float32 and loss.is_cpu and loss.ndim == 0 and ONE_MEMORY[()] == 1.0:
        gradient = ONE
    elif is_plain and loss.is_floating_point():
        gradient = torch.ones_like(loss, memory_format=torch.preserve_format)
    else:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    keep_graph = create_graph = False
    ENGINE.run_backward(
        (loss,), (gradient,), keep_graph, create_graph, (), allow_unreachable=True, accumulate_grad=True
    )


class LossScaler:
    """A scale for the loss in the backward pass, divided out of the gradients before they are returned.

    If gradients overflow, the update is left out and the scale is halved; at a scale of 1 there is nothing to
    halve, and the gradients are truly not finite.
    """

    def __init__(self, device: torch.device) -> None:
        self._scale = torch.full((), INITIAL_SCALE, dtype=torch.float32, device=device)
        self._growth = torch.zeros((), dtype=torch.int32, device=device)
        self._found = torch.zeros((), dtype=torch.float32, device=device)
        self._was_used = False

    def begin_step(self) -> None:
        """Forget the overflow of the previous step."""
        self._found.zero_()
        self._was_used = False

    def run_backward(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """Set ``.grad`` of *parameters* to the gradients of *loss*, computed at the scale."""
        (loss * self._scale).backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        dense = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
        torch._amp_foreach_non_finite_check_and_unscale_(dense, self._found, self._scale.reciprocal())
        self._was_used = True

    def check_used(self, model: object) -> None:
        """Raise `BuilderError` if the step of *model* computed its gradients without the scale."""
        if not self._was_used:
            raise BuilderError(
                f"{type(model).__name__}.train_step calls loss.backward() itself, and precision fp16 must "
                "scale the loss. Return TrainOutput(self, backward(self, loss), item), or set precision bf16"
            )

    def share_overflow(self, add: Callable[[Tensor], None]) -> None:
        """Count an overflow of any rank as one of this rank; *add* sums a tensor over the ranks in place."""
        add(self._found)

    def absorb_overflow(self) -> Tensor:
        """Return 1 if the gradients of this step overflowed at a scale above 1, else 0, and update the scale.

        The result is a scalar on the device, which the host does not wait for.
        """
        absorbed = self._found * (self._scale > 1.0)
        torch._amp_update_scale_(
            self._scale, self._growth, self._found, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL
        )
        self._scale.clamp_(min=1.0)
        return absorbed

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the number of steps since it changed."""
        return {"scale": self._scale.item(), "growth": int(self._growth.item())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore *state*. Raises `CheckpointError` if it is not the state of a loss scaler."""
        try:
            self._scale.fill_(float(state["scale"]))
            self._growth.fill_(int(state["growth"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of a loss scaler has the keys 'scale' and 'growth'; found {state}. Use a "
                "checkpoint of this version"
            ) from error


class MixedPrecision:
    """The precision of the steps of a run on *device*; weights, gradients and records are float32 in each."""

    def __init__(self, precision: Precision, device: torch.device, *, fast_path: FastPath = "off") -> None:
        self.is_full = precision not in AUTOCAST_DTYPES
        """True if steps run without autocast."""
        self._dtype = AUTOCAST_DTYPES.get(precision)
        self._device_type = device.type
        self._backward = choose_backward(fast_path)
        self.scaler = LossScaler(device) if precision == "fp16" else None
        """The scale of the loss; None except in fp16."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of one forward pass; a longer one would keep casts of old weights."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def run_backward(
        self,
        loss: Tensor,
        parameters: Sequence[Tensor],
        weight: "Weight | None" = None,  # noqa: ARG002  ranks need it
    ) -> None:
        """Set ``.grad`` of *parameters* to the gradients of *loss*, whatever its *weight*."""
        if self.is_full:
            self._backward(loss)
            return
        with torch.autocast(self._device_type, enabled=False):
            if self.scaler is None:
                self._backward(loss)
            else:
                self.scaler.run_backward(loss, parameters)
