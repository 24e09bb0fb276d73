"""Batchers: several samples to one batch, as the model takes it."""

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
from stages.data.prepared import Normalization


class Batch(NamedTuple):
    """What the shipped models take, of *B* samples; unpacks as ``inputs, targets``."""

    inputs: Tensor
    """(B, …), float32."""
    targets: Tensor
    """(B,) or (B, …)."""


class Batcher(Protocol):
    """Burn's `Batcher`: makes a batch of the samples a data set gave."""

    def batch(self, items: Sequence[Any]) -> Any:
        """One batch of *items*, on the CPU."""


class NormalizeBatcher:
    """Inputs to float32, with the mean taken away and divided by the standard deviation."""

    def __init__(self, mean: float = 0.0, std: float = 1.0) -> None:
        self._scale = 1.0 / std
        self._offset = torch.tensor(-mean / std)

    def batch(self, items: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        """Inputs as (B, …) float32, targets as they are."""
        samples = Samples.of(items)
        inputs = samples.inputs.to(torch.float32, copy=True)
        torch.add(self._offset, inputs, alpha=self._scale, out=inputs)  # one pass
        return Batch(inputs, samples.targets)


@dataclass(frozen=True)
class FunctionBatcher:
    """A batcher that calls *function* with the items of each batch, as torch calls a ``collate_fn``."""

    function: Callable[[Sequence[Any]], Any]

    def batch(self, items: Sequence[Any]) -> Any:
        """Return what the function makes of *items*."""
        return self.function(items)


def as_batcher(batcher: Batcher | Callable[[Sequence[Any]], Any]) -> Batcher:
    """Return *batcher*, or a batcher that calls it if it is a function. Raises `BuilderError`."""
    if isinstance(batcher, type):
        raise BuilderError(f"the batcher is the class {batcher.__name__}: pass an instance of it")
    if callable(getattr(batcher, "batch", None)):
        return batcher  # type: ignore[return-value]  # it has the method
    if callable(batcher):
        return FunctionBatcher(batcher)
    raise BuilderError(
        "the batcher must be a function or have a method batch(items); found the type "
        f"{type(batcher).__name__}"
    )


def build_batcher(use: Use, normalization: Normalization) -> Batcher:
    """Return the batcher that *use* names: an instance of a class, or a function of the items of a batch.

    A class is built with the arguments in *use*, and with ``mean`` and ``std`` of *normalization* if it takes
    them; a function gets the arguments at each call. Raises `PluginError`.
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
