"""What a step does to a model beside its weights, and how to undo it."""

from typing import Any

import torch


class Buffers:
    """The buffers of a model (running statistics, say) before a step; false where there are none."""

    def __init__(self, model: Any) -> None:
        self._buffers = list(model.buffers()) if model is not None else []
        self._kept: list[torch.Tensor] = []

    def __bool__(self) -> bool:
        return bool(self._buffers)

    @property
    def kept(self) -> list[torch.Tensor]:
        """The values that `take` copied last."""
        return self._kept

    def take(self) -> None:
        """Copy the current values."""
        self._kept = [buffer.clone() for buffer in self._buffers]

    def put_back(self, values: list[torch.Tensor] | None = None) -> None:
        """Set the buffers to *values*, by default to those that `take` copied last."""
        with torch.no_grad():
            for buffer, kept in zip(self._buffers, self._kept if values is None else values, strict=False):
                buffer.copy_(kept)
