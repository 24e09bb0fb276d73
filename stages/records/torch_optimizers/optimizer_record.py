"""Burn's record of a torch optimizer, the state that it leaves out, and the restoring of both."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.record_tree import Map, Tree
from stages.records.tensors import to_raw_tree
from stages.records.torch_optimizers.burn_state import (
    count_steps,
    exact_entries,
    form_of,
    read_state,
    record_state,
)
from stages.records.torch_optimizers.lbfgs import lbfgs_record
from stages.records.torch_optimizers.muon import muon_record
from stages.records.torch_optimizers.torch_state import (
    assign,
    members,
    options_of,
    parameters_of,
    slots_by_parameter,
    step_kind,
    to_entry,
)


def optimizer_record(optimizer: torch.optim.Optimizer, module: nn.Module, skeleton: Tree = None) -> Tree:
    """Return Burn's record of *optimizer*: a map from the ids of *module*'s parameters to their states.

    L-BFGS has a single state for all parameters. Parameters without state have no entry; a tied parameter has
    one for each of its slots.

    Args:
        optimizer: The optimizer to record.
        module: The module whose parameters it trains.
        skeleton: The skeleton of *module*, to save the time to build it.

    Returns:
        The record; None if Burn has no such optimizer.
    """
    form = form_of(optimizer)
    if form is None and isinstance(optimizer, torch.optim.LBFGS):
        return lbfgs_record(optimizer, module, skeleton)
    if form is None:
        return muon_record(optimizer, module, skeleton)
    places, steps = slots_by_parameter(module, skeleton), count_steps(optimizer.state)
    record = Map()
    for parameter in parameters_of(optimizer):
        for slot in places.get(id(parameter), ()):
            entries = optimizer.state.get(parameter, {})
            state = record_state(form, entries, parameter, slot, steps=steps.get(parameter))
            if state is not None:
                record[slot.id] = state
    return record


def optimizer_supplement(optimizer: torch.optim.Optimizer, module: nn.Module) -> Tree:
    """Return what an exact resume needs in addition to `optimizer_record`.

    The result is a tree of numbers, text and torch tensors: the options, and each entry of the state that the
    record does not restore bit for bit. For an optimizer that Burn lacks it is the complete ``state_dict``.

    Raises:
        RecordError: If the state holds an object that cannot be recorded.
    """
    name, form = type(optimizer).__name__, form_of(optimizer)
    if form is None:
        return {"optimizer": name, "state_dict": _with_text_keys(optimizer.state_dict(), "state_dict")}
    places, steps = slots_by_parameter(module, None), count_steps(optimizer.state)
    state: dict[str, Tree] = {}
    held: dict[str, list[str]] = {}
    for index, (group, parameter) in enumerate(members(optimizer)):
        entries = optimizer.state.get(parameter, {})
        names: set[str] = set()
        slots, count = places.get(id(parameter), ()), steps.get(parameter)
        if slots and record_state(form, entries, parameter, slots[0], steps=count) is not None:
            step = None if count is None else step_kind(group, parameter)
            names = exact_entries(form, entries, parameter, step=step)
        held[str(index)] = sorted(names)
        left = {key: entry for key, entry in entries.items() if key not in names}
        if left:
            state[str(index)] = _with_text_keys(left, f"state.{index}")
    groups = [_with_text_keys(options_of(group), "param_groups") for group in optimizer.param_groups]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return {"optimizer": name, "param_groups": groups, "sizes": sizes, "held": held, "state": state}


def restore_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module, item: Tree, rest: Tree) -> None:
    """Restore *optimizer* from its `optimizer_record` and `optimizer_supplement`, bit for bit.

    Args:
        optimizer: The optimizer to restore.
        module: The module whose parameters it trains.
        item: The record.
        rest: The supplement.

    Raises:
        RecordError: If they are those of another optimizer; *optimizer* is then unchanged.
    """
    _check(optimizer, rest)
    form = form_of(optimizer)
    if form is None:
        _load_state_dict(optimizer, rest["state_dict"])
        return
    places, entries = slots_by_parameter(module, None), to_raw_tree(item) or {}
    groups = [
        _merge_options(group, saved)
        for group, saved in zip(optimizer.param_groups, rest["param_groups"], strict=True)
    ]
    states = []
    for index, (group, parameter) in enumerate(members(optimizer, groups)):
        names = rest["held"].get(str(index), [])
        found = [(slot, entries.get(slot.id)) for slot in places.get(id(parameter), ())]
        state = read_state(form, found, parameter, "the optimizer's record") if names else {}
        lacking = [name for name in names if name not in state]
        if lacking:
            raise RecordError(
                f"the optimizer's record has no {', '.join(lacking)} of parameter {index}. Use another "
                "checkpoint"
            )
        state = {name: to_entry(state[name], name, group, parameter) for name in names}
        left = rest["state"].get(str(index), {})
        states.append({**state, **{key: to_entry(left[key], key, group, parameter) for key in left}})
    assign(optimizer, groups, states)


def _check(optimizer: torch.optim.Optimizer, rest: Tree) -> None:
    name = type(optimizer).__name__
    if not isinstance(rest, dict) or rest.get("optimizer") != name:
        other = rest.get("optimizer") if isinstance(rest, dict) else rest
        raise RecordError(
            f"the saved state is that of {other}, and the optimizer is a {name}. Use the saved optimizer"
        )
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if "sizes" in rest and list(rest["sizes"]) != sizes:
        raise RecordError(
            f"the saved state has groups of {rest['sizes']} parameters, the optimizer has {sizes}. Use the "
            "same parameter groups"
        )


def _merge_options(group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options *saved*, with tuples where *group* has tuples, because files store them as lists."""
    return {
        key: tuple(value) if isinstance(group.get(key), tuple) and isinstance(value, list) else _copy(value)
        for key, value in saved.items()
    }


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _load_state_dict(optimizer: torch.optim.Optimizer, saved: Tree) -> None:
    """Load a complete ``state_dict``, whose integer keys are stored as text and whose tuples as lists."""
    state, groups = saved.get("state", {}), saved.get("param_groups", [])
    state = {int(key) if key.isdigit() else key: entry for key, entry in state.items()}
    groups = [_merge_options(now, then) for now, then in zip(optimizer.param_groups, groups, strict=False)]
    try:
        optimizer.load_state_dict({**saved, "state": state, "param_groups": groups})
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"the saved state does not fit this {type(optimizer).__name__}: {error}") from error
    for index, parameter in enumerate(parameters_of(optimizer)):
        _undo_casts(optimizer.state.get(parameter, {}), state.get(index, {}))


def _undo_casts(loaded: Any, saved: Tree) -> None:
    """Restore the dtypes of the entries that torch cast to the parameter's dtype when it loaded them."""
    for key, entry in saved.items() if isinstance(saved, dict) else ():
        now = loaded.get(key)
        if isinstance(entry, Tensor) and isinstance(now, Tensor) and now.dtype != entry.dtype:
            loaded[key] = entry.to(now.device, copy=True)


def _with_text_keys(node: Any, path: str) -> Tree:
    """Return *node* with text in place of integer keys and lists in place of tuples."""
    if isinstance(node, dict):
        return {_text_key(key, path): _with_text_keys(value, f"{path}.{key}") for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_with_text_keys(value, f"{path}.{key}") for key, value in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str | bytes | Tensor):
        return node
    raise RecordError(
        f"cannot record the optimizer's {path}: found the type {type(node).__name__}. Keep only numbers, "
        "text, bytes, tensors, lists and dicts in its state"
    )


def _text_key(key: Any, path: str) -> str:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return str(key)
    raise RecordError(f"cannot record the optimizer's {path}: found the key {key!r}, expected text")
