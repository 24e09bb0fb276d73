"""A torch optimizer's parameters, their slots in a module's record, and their state."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stages.records.record_tree import Tree
from stages.records.torch_modules.module_record import skeleton_of
from stages.records.torch_modules.skeleton import Slot, slots
from stages.records.torch_optimizers.burn_state import STEP

Options = dict[str, Any]
"""The options of a parameter group: learning rate, betas and so on."""


def slots_by_parameter(module: nn.Module, skeleton: Tree) -> dict[int, list[Slot]]:
    """Return the slots of each parameter, by the ``id`` of its tensor."""
    by_name: dict[str, list[Slot]] = {}
    for _, slot in slots(skeleton_of(module) if skeleton is None else skeleton):
        by_name.setdefault(slot.name, []).append(slot)
    places: dict[int, list[Slot]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).extend(by_name.get(name, ()))
    return places


def members(
    optimizer: torch.optim.Optimizer, groups: list[Options] | None = None
) -> Iterator[tuple[Options, Tensor]]:
    """Yield each parameter with the options of its group, from *groups* if that is not None."""
    for place, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield (groups[place] if groups else group), parameter


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Return an iterator over the parameters, in the order of the ``state_dict``."""
    return (parameter for _, parameter in members(optimizer))


def options_of(group: Mapping[str, Any]) -> Options:
    """Return the entries of *group* other than its parameters."""
    return {key: value for key, value in group.items() if key != "params"}


def step_kind(group: Mapping[str, Any], parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    """Return the dtype and the device of the counter of a new torch optimizer."""
    on_device = bool(group.get("capturable") or group.get("fused"))
    wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    device = parameter.device if on_device else torch.device("cpu")
    return torch.float64 if wide else torch.float32, device


def new_step(value: float, group: Mapping[str, Any], parameter: Tensor) -> Tensor:
    """Return the counter of a new torch optimizer, with *value*."""
    dtype, device = step_kind(group, parameter)
    return torch.full((), float(value), dtype=dtype, device=device)  # no copy to the device


def to_entry(entry: Any, key: str, group: Mapping[str, Any], parameter: Tensor) -> Any:
    """Return a copy of *entry* with the device, dtype and strides with which an optimizer keeps it."""
    if key == STEP and isinstance(entry, int):
        return new_step(entry, group, parameter)
    if not isinstance(entry, Tensor):
        return entry
    device = step_kind(group, parameter)[1] if key == STEP else parameter.device
    if entry.shape == parameter.shape:  # with the parameter's strides, as torch creates it
        return torch.empty_like(parameter, dtype=entry.dtype, requires_grad=False).copy_(entry)
    return entry.detach().to(device, copy=True)


def assign(optimizer: torch.optim.Optimizer, groups: list[Options], states: list[dict[str, Any]]) -> None:
    """Set the options of *optimizer* to *groups*, and the state of each parameter to one of *states*."""
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update(options)
    for (_, parameter), state in zip(members(optimizer), states, strict=True):
        optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[parameter] = state
