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

    def take(self) -> None:
        """Remember them as they are."""
        self._kept = [buffer.clone() for buffer in self._buffers]

    def put_back(self) -> None:
        """Make them what was remembered."""
        with torch.no_grad():
            for buffer, kept in zip(self._buffers, self._kept, strict=False):
                buffer.copy_(kept)
