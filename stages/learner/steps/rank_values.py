"""The values of metrics on their way to the loggers: from the device to the host, and from rank to rank."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from stages.contracts.errors import RecordError
from stages.contracts.outputs import as_count
from stages.distributed import RankGroup
from stages.metrics.state import Mean, MetricState, load_state, save_state
from stages.records import Tree, decode_state, encode_state

Pending = tuple[str, int, MetricState]
NO_VALUE = Mean(0.0, 0)
"""The measurement of a number that a step does not log."""


def add_rank_values(
    group: RankGroup,
    iterations: Sequence[int],
    columns: Mapping[str, Sequence[MetricState]],
    own: Collection[str],
) -> dict[str, list[MetricState]]:
    """Return *columns*, values of *iterations* by metric, with those of all ranks added, on rank 0.

    The metrics in *own* have the value of rank 0, which has a sample of every batch.
    """
    values = [
        (name, iteration, value)
        for name, column in columns.items()
        for iteration, value in zip(iterations, column, strict=True)
    ]
    gathered = group.gather(_encode([value for value in values if value[0] not in own]))
    added = {(name, iteration): value for name, iteration, value in values}
    names = dict.fromkeys(columns)
    for tree in gathered[1:]:
        _add(added, tree)
        names |= dict.fromkeys(tree["means"])  # a step of another rank may log what that of this one does not
    return {name: [added.get((name, number), NO_VALUE) for number in iterations] for name in names}


def _encode(values: Sequence[Pending]) -> dict[str, Any]:
    """Return *values* as a tree: a tensor of (iteration, total, weight) for means, a map for others."""
    means: dict[str, list[tuple[float, ...]]] = {}
    others: dict[str, dict[str, Any]] = {}
    for name, iteration, value in values:
        if type(value) is Mean:
            means.setdefault(name, []).append((iteration, float(value.total), float(value.weight)))
        else:
            others.setdefault(name, {})[str(iteration)] = encode_value(value, name)
    rows = {name: torch.tensor(mean, dtype=torch.float64, device="cpu") for name, mean in means.items()}
    return {"means": rows, "others": others}


def _add(added: dict[tuple[str, int], Any], tree: Mapping[str, Any]) -> None:
    """Add the values in *tree*, which `_encode` returned on another rank."""
    for name, rows in tree["means"].items():
        for iteration, total, weight in rows.tolist():
            earlier = added.get((name, int(iteration)), NO_VALUE)
            added[name, int(iteration)] = earlier + Mean(total, as_count(weight))
    for name, states in tree["others"].items():
        for iteration, state in states.items():
            earlier = added[name, int(iteration)]
            added[name, int(iteration)] = earlier + load_state(decode_state(state), earlier, name)


def encode_value(value: MetricState, metric: str) -> Tree:
    """Return the state of *value* as a tree that every record can hold.

    Raises `TypeError`, which names the *metric*, if it has none or a part of it cannot be recorded.
    """
    try:
        return encode_state(
            save_state(value, metric), f"metric {metric!r}: {type(value).__name__}.state_dict()"
        )
    except RecordError as error:
        raise TypeError(str(error)) from None


NUMBERS = {float, int}
SUMS = attrgetter("total", "weight")
ASYNCHRONOUS_DEVICES = ("cuda",)
"""The devices from which torch copies to the host while they run."""


class HostTransfer:
    """A copy of all numbers of the means in *measured*, and of *flag*, to the host.

    On CUDA it is in progress until `wait`, in order with what was launched before it.
    """

    def __init__(self, measured: list[MetricState], flag: Tensor | None = None) -> None:
        self._measured = measured
        self._has_flag = flag is not None
        has_others = set(map(type, measured)) != {Mean}
        means = [value for value in measured if isinstance(value, Mean)] if has_others else measured
        parts = [*chain.from_iterable(map(SUMS, means))]
        is_hosted = {*map(type, parts)} <= NUMBERS
        scalars = [] if is_hosted else [part for part in parts if isinstance(part, Tensor)]
        if flag is not None:
            scalars.append(flag)
        self.is_asynchronous = bool(scalars) and scalars[-1].device.type in ASYNCHRONOUS_DEVICES
        """False if `wait` does not wait."""
        self._numbers = _copy_to_host(scalars) if scalars else torch.empty(0, device="cpu")
        if self.is_asynchronous:
            self._event = torch.Event(scalars[-1].device.type)
            self._event.record()

    def wait(self) -> tuple[list[MetricState], bool]:
        """Return the values with every mean on the host, and whether the flag was set.

        Other values stay on their device.
        """
        if self.is_asynchronous:
            self._event.synchronize()
        if not len(self._numbers):
            return self._measured, False
        numbers = iter(self._numbers.tolist())
        hosted = [_on_host(value, numbers) if isinstance(value, Mean) else value for value in self._measured]
        return hosted, self._has_flag and bool(next(numbers))


def transfer_to_host(measured: list[MetricState]) -> list[MetricState]:
    """Return *measured* with every mean on the host, in one transfer, which waits for the device."""
    return HostTransfer(measured).wait()[0]


@torch.no_grad()
def _copy_to_host(scalars: Sequence[Tensor]) -> Tensor:
    device = scalars[-1].device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    numbers = torch.stack([_convert(scalar, device, dtype) for scalar in scalars])
    return numbers.to("cpu", non_blocking=device.type in ASYNCHRONOUS_DEVICES)


def _convert(scalar: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return *scalar* on *device* as *dtype*; a comparison costs a third of a call of ``to``."""
    if scalar.dtype is dtype and scalar.device == device:
        return scalar
    return scalar.to(device, dtype)


def _on_host(mean: Mean, numbers: Iterator[float]) -> Mean:
    """Return *mean* with the next of *numbers* for each of its tensors."""
    total = next(numbers) if isinstance(mean.total, Tensor) else mean.total
    weight = as_count(next(numbers)) if isinstance(mean.weight, Tensor) else mean.weight
    return type(mean)(total, weight)
