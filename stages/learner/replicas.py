"""The same model on several devices: a batch each, beside each other, and one update for all of them.

A round of N devices computes what an accumulation window of N batches computes. Running statistics are
those of the first device's batches; the others take them over when an epoch begins.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from stages.contracts.outputs import TrainOutput
from stages.contracts.placement import move
from stages.models import cache_parameters, clear_gradients


class Replicas:
    """The model on the first device, and copies of it on the others."""

    def __init__(self, model: Any, devices: Sequence[torch.device]) -> None:
        self.devices = tuple(devices)
        self._models = [model, *(copy.deepcopy(model).to(device) for device in self.devices[1:])]

    def __len__(self) -> int:
        return len(self.devices)

    def train_steps(
        self, batches: Sequence[Any], check: Callable[[Any], TrainOutput[Any]]
    ) -> list[TrainOutput[Any]]:
        """Compute a training step of each batch on a device of its own, with the gradients on the first.

        *check* is called with what each step returns.

        The steps are launched one after another: on accelerators they run at the same time.
        """
        self.clear_gradients()
        first = self.devices[0]
        steps = [
            check(model.train_step(batch if device == first else move(batch, device)))
            for model, device, batch in zip(self._models, self.devices, batches, strict=False)
        ]
        return [
            TrainOutput(
                self._models[0],
                [None if g is None else g.to(first) for g in step.gradients],
                step.item if device == first else move(step.item, first),
            )
            for step, device in zip(steps, self.devices, strict=False)
        ]

    def clear_gradients(self) -> None:
        """Set ``.grad`` of every parameter to None, on every device."""
        for model in self._models:
            clear_gradients(model)

    def synchronize(self) -> None:
        """Bring every copy to the first model's parameters."""
        if len(self._models) == 1:
            return
        source = list(self._models[0].parameters())
        with torch.no_grad():
            for model in self._models[1:]:
                for copied, parameter in zip(model.parameters(), source, strict=True):
                    copied.copy_(parameter)

    def each(self, change: Callable[[Any], None]) -> None:
        """Do *change* to the model on every device."""
        for model in self._models:
            change(model)

    def copy_buffers(self) -> None:
        """Bring every copy to the first model's buffers; between two calls each keeps its own."""
        with torch.no_grad():
            for model in self._models[1:]:
                for copied, buffer in zip(model.buffers(), self._models[0].buffers(), strict=True):
                    copied.copy_(buffer)

    def buffers(self) -> list[list[torch.Tensor]]:
        """What each copy has of its own, as it is now."""
        return [[buffer.detach().clone() for buffer in model.buffers()] for model in self._models[1:]]

    def restore_buffers(self, kept: Sequence[Sequence[torch.Tensor]]) -> None:
        """Give each copy what `buffers` gave; one that had none yet keeps what it has."""
        with torch.no_grad():
            for model, own in zip(self._models[1:], kept, strict=False):
                for buffer, value in zip(model.buffers(), own, strict=True):
                    buffer.copy_(value)

    @contextmanager
    def known_parameters(self) -> Iterator[None]:
        """Look up the parameters of every model once for the block."""
        with ExitStack() as stack:
            for model in self._models:
                stack.enter_context(cache_parameters(model))
            yield

    def train(self) -> None:
        """Training mode, on every device."""
        for model in self._models:
            model.train()


def rounds(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """*batches* in groups of *size*; the last has what is left."""
    group = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
