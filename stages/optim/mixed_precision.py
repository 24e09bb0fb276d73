"""Mixed precision: a step runs under autocast, and its backward pass outside it, scaled for fp16."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from stages.contracts.fields import FastPath, Precision
from stages.contracts.outputs import Weight
from stages.optim import LossScaler
from stages.optim.fast_path.backward import choose_backward

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of autocast by the precision; in ``f32`` and ``tf32`` all tensors are float32."""


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
