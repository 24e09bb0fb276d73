"""Batchers, which combine samples to the batch that a model receives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import BuilderError, PluginError
from stages.data.config import BATCHERS
from stages.data.datasets import Samples
from stages.data.storage import Normalization


class Batch(NamedTuple):
    """The input of the built-in models for *B* samples; unpacks as ``inputs, targets``."""

    inputs: Tensor
    """(B, …), float32."""
    targets: Tensor
    """(B,) or (B, …)."""


class Batcher(Protocol):
    """A function from samples to a batch. Burn's `Batcher`."""

    def batch(self, items: Sequence[Any]) -> Any:
        """Return one batch of *items*, on the CPU."""


class NormalizeBatcher:
    """A batcher that converts inputs to float32, subtracts *mean* and divides by *std*."""

    def __init__(self, mean: float = 0.0, std: float = 1.0) -> None:
        self._scale = 1.0 / std
        self._offset = torch.tensor(-mean / std)

    def batch(self, items: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        """Return the inputs as (B, …) float32, with unchanged targets."""
        samples = Samples.of(items)
        inputs = samples.inputs.to(torch.float32, copy=True)
        torch.add(self._offset, inputs, alpha=self._scale, out=inputs)  # one pass
        return Batch(inputs, samples.targets)


@dataclass(frozen=True)
class FunctionBatcher:
    """A batcher that calls *function* with the items of each batch, as PyTorch calls a ``collate_fn``."""

    function: Callable[[Sequence[Any]], Any]

    def batch(self, items: Sequence[Any]) -> Any:
        """Return the result of the function for *items*."""
        return self.function(items)


def as_batcher(batcher: Batcher | Callable[[Sequence[Any]], Any]) -> Batcher:
    """Return *batcher*, or a batcher that calls it if it is a function.

    Raises `BuilderError` if it is neither.
    """
    if isinstance(batcher, type):
        raise BuilderError(
            f"the batcher must be an instance; found the class {batcher.__name__}. Pass an instance of it"
        )
    if callable(getattr(batcher, "batch", None)):
        return batcher  # type: ignore[return-value]  # checked above
    if callable(batcher):
        return FunctionBatcher(batcher)
    raise BuilderError(
        "the batcher must be a function or have a method batch(items); found the type "
        f"{type(batcher).__name__}"
    )


def build_batcher(use: Use, normalization: Normalization) -> Batcher:
    """Return the batcher that *use* names: an instance of a class, or a function of the items of a batch.

    A class is built with the arguments in *use*, and with ``mean`` and ``std`` of *normalization* if it takes
    them; a function receives the arguments at each call. Raises `PluginError` if it cannot be built.
    """
    found = plugins.find("batcher", use.kind, BATCHERS)
    arguments = arguments_of(use)
    if isinstance(found, type):
        offered = plugins.select_accepted(found, {"mean": normalization.mean, "std": normalization.std})
        found = plugins.build("batcher", use.kind, found, {**offered, **arguments})
    elif arguments:
        found = partial(found, **arguments)
    try:
        return as_batcher(found)
    except BuilderError as error:
        raise PluginError(f"batcher {use.kind!r}: {error}") from None
