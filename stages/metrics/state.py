"""Values that metrics accumulate over an epoch: they add, and a checkpoint can hold them."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import reduce
from itertools import chain
from operator import add, attrgetter, truediv
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from stages.contracts.errors import CheckpointError
from stages.contracts.outputs import Weight, as_count
from stages.contracts.placement import field_values

T = TypeVar("T")
S = TypeVar("S", bound="MetricState")

ADVICE = (
    "make it a frozen dataclass of tensors and numbers, or give it the methods state_dict() and "
    "load_state_dict(state), see stages/metrics/README.md"
)


class MetricState(Protocol):
    """The measurement of a batch, which adds over batches, epochs and ranks.

    It stays on its device until `value` is read. It may also have:

    * ``has_batch_value``: False if the value of a single batch is neither logged nor shown, for example
      because it is expensive. It must be the same for all batches of a run, whatever their size: a resumed
      run must log the same lines as an uninterrupted one.
    * ``state_dict()``: returns what was accumulated as a dict of tensors, numbers, text, and containers of
      these, for a checkpoint in the middle of an epoch.
    * ``load_state_dict(state)``: returns a value with what *state* holds. It is called on the measurement of
      the first batch after a resume, which supplies everything that is not state. The tensors of *state* are
      on its device.

    A frozen dataclass of tensors and numbers needs neither of the two methods.
    """

    def __add__(self, other: Self, /) -> Self:
        """Return the measurement of both together."""

    @property
    def value(self) -> float:
        """The value of the metric; NaN without samples. Only this and `count` block on the device."""

    @property
    def count(self) -> float:
        """The number of samples or tokens, or the sum of their weights: the weight in a log line."""


@runtime_checkable
class StatefulState(Protocol):
    """A measurement that makes its own state dict; see `MetricState`."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was accumulated."""

    def load_state_dict(self, state: Any) -> Any:
        """Return a value with what *state* holds."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A weighted mean, stored as its two sums so that uneven batches add exactly.

    >>> (Mean(3.0, 2) + Mean(0.0, 1)).value
    1.0
    """

    total: float | Tensor
    """The sum over the samples; on an accelerator a scalar tensor of float64."""
    weight: Weight
    """The number of samples, or the sum of their weights; a scalar tensor if only the device has it."""

    def __add__(self, other: Self, /) -> Self:
        return type(self)(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> float:
        """The mean; NaN without samples."""
        weight = float(self.weight)
        return float(self.total) / weight if weight else float("nan")

    @property
    def count(self) -> float:
        """The weight, as an `int` if it is a whole number."""
        return self.weight if type(self.weight) is int else as_count(float(self.weight))

    @classmethod
    def from_mean(cls, mean: Tensor, weight: float) -> Self:
        """Return the *mean* (a scalar) of a batch with *weight*; float64 holds their product exactly."""
        return cls.from_sum(mean, weight, weight) if weight else cls(0.0, 0)

    @classmethod
    def from_sum(cls, total: Tensor, weight: Weight, scale: float = 1.0) -> Self:
        """Return the mean of *total* (a scalar) times *scale*, over *weight*."""
        if total.is_cpu:  # costs less than an addition of tensors
            return cls(total.item() * scale, as_count(float(weight)))
        wide = total.detach() if total.device.type == "mps" else total.detach().to(torch.float64)
        return cls(wide * scale, weight)


TOTAL, WEIGHT = attrgetter("total"), attrgetter("weight")


def read_values(values: Sequence[Any]) -> list[tuple[float, float]]:
    """Return the value and the count of each of *values*, which are on the host; of means without calls."""
    if set(map(type, values)) == {Mean}:
        weights = [*map(WEIGHT, values)]
        if set(map(type, weights)) == {int} and all(weights):
            return [*zip(map(truediv, map(TOTAL, values), weights), weights, strict=True)]
    return [(value.value, value.count) for value in values]


def add_states(values: Sequence[Any]) -> Any:
    """Return the sum of *values*, added in order; there is at least one."""
    if set(map(type, values)) != {Mean}:
        return reduce(add, values)
    return Mean(reduce(add, map(TOTAL, values)), reduce(add, map(WEIGHT, values)))


@dataclass(frozen=True)
class Chunks(Generic[T]):
    """Items in order of arrival; adding *n* of them one by one takes n·log(n) steps instead of n²."""

    runs: tuple[tuple[T, ...], ...] = ()
    """Each is shorter than the one before, like the digits of a binary number."""

    def __add__(self, other: Self, /) -> Self:
        runs = list(self.runs)
        for added in other.runs:
            run = added
            while runs and len(runs[-1]) <= len(run):
                run = runs.pop() + run
            runs.append(run)
        return type(self)(tuple(runs))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.runs)


def save_state(value: MetricState, metric: str) -> dict[str, Any]:
    """Return the state dict of *value*, whose tensors are detached and share its memory.

    Raises `TypeError`, which names the *metric*, if *value* has no `state_dict` and is not a frozen dataclass
    of tensors and numbers.
    """
    methods = [name for name in ("state_dict", "load_state_dict") if hasattr(value, name)]
    kind = type(value).__name__
    if len(methods) == 1:
        raise TypeError(
            f"metric {metric!r} accumulates {kind}, which has only the method {methods[0]}: {ADVICE}"
        )
    state = value.state_dict() if isinstance(value, StatefulState) else _save_fields(value, metric)
    if not isinstance(state, dict):
        raise TypeError(f"metric {metric!r}: {kind}.state_dict() is a {type(state).__name__}: return a dict")
    detached: dict[str, Any] = _map_tensors(state, Tensor.detach)
    return detached


def load_state(state: Any, value: S, metric: str) -> S:
    """Return the value that `save_state` made *state* of; *value* is the next measurement of the same metric.

    The tensors are moved to the device of *value*. Raises `CheckpointError`, which names the *metric*, if
    *state* does not belong to such a value.
    """
    device = next((tensor.device for tensor in _tensors(save_state(value, metric))), torch.device("cpu"))
    try:
        if not isinstance(state, dict):
            raise TypeError(f"found a {type(state).__name__}, expected a dict")
        moved = _map_tensors(state, lambda tensor: tensor.to(device))
        loaded: S = (
            value.load_state_dict(moved) if isinstance(value, StatefulState) else _load_fields(moved, value)
        )
        if type(loaded) is not type(value):
            raise TypeError(f"load_state_dict returned {type(loaded).__name__}, not {type(value).__name__}")
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError) as error:
        raise CheckpointError(
            f"the state of metric {metric!r} in the checkpoint does not belong to the {type(value).__name__} "
            f"that it measures now ({type(error).__name__}: {error}). Resume with the metrics of the "
            "interrupted run, or from the end of an epoch"
        ) from error
    return loaded


def _save_fields(value: Any, metric: str) -> dict[str, Any]:
    """Return the fields of a frozen dataclass by name."""
    kind = type(value)
    if not (is_dataclass(value) and kind.__dataclass_params__.frozen):
        raise TypeError(
            f"metric {metric!r} accumulates {kind.__name__}, which cannot be saved in the middle of an "
            f"epoch: {ADVICE}"
        )
    return {
        name: _save_field(part, metric, f"{kind.__name__}.{name}")
        for name, part in field_values(value).items()
    }


def _save_field(value: Any, metric: str, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor):
        return value
    if is_dataclass(value):
        return value.state_dict() if isinstance(value, StatefulState) else _save_fields(value, metric)
    raise TypeError(
        f"metric {metric!r} accumulates {type(value).__name__} in {path}, which cannot be saved in the "
        f"middle of an epoch: {ADVICE}"
    )


def _load_fields(state: Any, value: Any) -> Any:
    """Return a copy of the dataclass *value* with the fields of *state*."""
    parts = field_values(value)
    if state.keys() != parts.keys():
        raise ValueError(
            f"found {', '.join(sorted(state)) or 'no field'}, expected {', '.join(sorted(parts))}"
        )
    return replace(value, **{name: _load_field(state[name], part) for name, part in parts.items()})


def _load_field(saved: Any, value: Any) -> Any:
    if is_dataclass(value) and isinstance(saved, dict):
        if isinstance(value, StatefulState):
            return value.load_state_dict(saved)
        return _load_fields(saved, value)
    is_text = isinstance(saved, str | bytes) and not isinstance(value, str | None)
    if is_dataclass(value) or isinstance(saved, dict | list) or is_text:
        raise ValueError(f"found a {type(saved).__name__}, expected a {type(value).__name__}")
    return type(value)(saved) if isinstance(value, np.generic) else saved


def _tensors(node: Any) -> Iterator[Tensor]:
    if isinstance(node, Tensor):
        yield node
    elif isinstance(node, dict | list | tuple | deque):
        for child in node.values() if isinstance(node, dict) else node:
            yield from _tensors(child)


def _map_tensors(node: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of *node*, in which *change* is applied to the tensors in its containers."""
    if isinstance(node, Tensor):
        return change(node)
    if isinstance(node, dict):
        return {key: _map_tensors(child, change) for key, child in node.items()}
    if isinstance(node, deque):
        return deque((_map_tensors(child, change) for child in node), node.maxlen)
    return type(node)(_map_tensors(child, change) for child in node) if type(node) in (list, tuple) else node
