"""Burn's record of a torch optimizer, the state that it leaves out, and the restoring of both.

A record that Burn wrote, also 0.22, has other parameter ids, and needs that of the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.dotted_names import param_ids
from stages.records.record_tree import Map, ParameterState, Tree
from stages.records.state_tree import decode_state, encode_state
from stages.records.tensors import replace_tensors, to_raw_tree
from stages.records.torch_layouts.lbfgs import lbfgs_record, read_lbfgs
from stages.records.torch_layouts.module_record import skeleton_of
from stages.records.torch_layouts.optimizer_state import (
    ADAFACTOR,
    BUFFER,
    MUON,
    RMS_PROP,
    SGD,
    STEP,
    VELOCITY,
    assign,
    count_steps,
    exact_entries,
    form_of,
    form_of_group,
    has_joint_moments,
    keys,
    members,
    new_step,
    options_of,
    part_of,
    read_state,
    record_state,
    slots_by_parameter,
    step_kind,
    to_entry,
)
from stages.records.torch_layouts.skeleton import slots

_OPAQUE = object()
"""A value that `torch.optim.Optimizer.load_state_dict` does not copy."""


def optimizer_record(optimizer: torch.optim.Optimizer, module: nn.Module, skeleton: Tree = None) -> Tree:
    """Return Burn's record of *optimizer*: a map from the ids of *module*'s parameters to their states.

    L-BFGS has a single state for all parameters. Parameters without state have no entry; a tied parameter has
    one for each of its slots. Only files of Burn 0.22 have the entries of further optimizers, as of
    the AdamW beside a Muon.

    Args:
        optimizer: The optimizer to record.
        module: The module whose parameters it trains.
        skeleton: The skeleton of *module*, to save the time to build it.

    Returns:
        The record; None if Burn has no such optimizer.
    """
    tree = skeleton_of(module) if skeleton is None else skeleton
    if isinstance(optimizer, torch.optim.LBFGS):
        return lbfgs_record(optimizer, module, tree)
    places, steps = slots_by_parameter(module, tree), count_steps(optimizer.state)
    paths = {slot.id: path for path, slot in slots(tree)}
    first = part_of(optimizer, optimizer.param_groups[0])
    record = Map()
    for group, parameter in members(optimizer):
        form = form_of_group(optimizer, group)
        if form is None:
            return None
        for slot in places.get(id(parameter), ()):
            entries, count = optimizer.state.get(parameter, {}), steps.get(parameter)
            state = record_state(form, entries, (group, parameter), slot, steps=count)
            if state is not None:
                is_of_group = part_of(optimizer, group) is not first
                record[slot.id] = ParameterState("V1", 0, state, paths[slot.id], is_of_group)
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
        order = _names_in_order(optimizer, module)
        named = {} if order in ([], [path for path, _ in module.named_parameters()]) else {"names": order}
        return {"optimizer": name, "state_dict": _encode_state_dict(optimizer), **named}
    places, steps = slots_by_parameter(module, skeleton_of(module)), count_steps(optimizer.state)
    state: dict[str, Tree] = {}
    exact_names: dict[str, list[str]] = {}
    for index, (group, parameter) in enumerate(members(optimizer)):
        entries = optimizer.state.get(parameter, {})
        names: set[str] = set()
        places_of, count = places.get(id(parameter), ()), steps.get(parameter)
        if (
            places_of
            and record_state(form, entries, (group, parameter), places_of[0], steps=count) is not None
        ):
            step = None if count is None else step_kind(group, parameter)
            names = exact_entries(form, entries, parameter, step=step)
        exact_names[str(index)] = sorted(names)
        inexact = {key: entry for key, entry in entries.items() if key not in names}
        if inexact:
            state[str(index)] = _encode_entries(optimizer, inexact)
    groups = _encode_options(optimizer, [options_of(group) for group in optimizer.param_groups])
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    shared = {key: entry for key, entry in optimizer.state.items() if not isinstance(key, Tensor)}
    extra = {"shared": encode_state(shared, f"the state of the {name}")} if shared else {}
    return {
        "optimizer": name,
        "param_groups": groups,
        "sizes": sizes,
        "held": exact_names,
        "state": state,
        **extra,
    }


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
    _check(optimizer, module, rest)
    form = form_of(optimizer)
    if form is None:
        _load_state_dict(optimizer, rest["state_dict"])
        return
    places, entries = slots_by_parameter(module, skeleton_of(module)), to_raw_tree(item) or {}
    groups = [
        _merge_options(group, saved)
        for group, saved in zip(optimizer.param_groups, rest["param_groups"], strict=True)
    ]
    states = []
    for index, (group, parameter) in enumerate(members(optimizer, groups)):
        names = rest["held"].get(str(index), [])
        nodes = [(slot, entries.get(slot.id)) for slot in places.get(id(parameter), ())]
        state = read_state(form, nodes, parameter, "the optimizer's record") if names else {}
        lacking = [name for name in names if name not in state]
        if lacking:
            raise RecordError(
                f"the optimizer's record has no {', '.join(lacking)} of parameter {index}. Use another "
                "checkpoint"
            )
        state = {name: to_entry(state[name], name, group, parameter) for name in names}
        inexact = rest["state"].get(str(index), {})
        states.append(
            {**state, **{key: _decode_entry(inexact[key], key, group, parameter) for key in inexact}}
        )
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update(options)
    assign(optimizer, states)
    optimizer.state.update(decode_state(rest.get("shared", {})))


def load_burn_optimizer(
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    item: Tree,
    model_item: Tree,
    *,
    source: str = "the optimizer's record",
) -> list[str]:
    """Load a record that Burn wrote into *optimizer* and return the paths of the parameters it lacks.

    Options are kept, and state that Burn does not store (RMSProp's step) starts as in a new optimizer. SGD
    without momentum has no state, so it lacks nothing.

    Args:
        optimizer: The optimizer to load into.
        module: The module whose parameters it trains.
        item: Burn's record of the optimizer.
        model_item: Burn's record of the model from the same checkpoint, which has the ids of *item*.
        source: The name of the record in messages.

    Raises:
        RecordError: If the record does not fit *optimizer*, if it lacks the state of every parameter, or
            if Burn has no such optimizer; *optimizer* is then unchanged.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        first = optimizer.param_groups[0]["params"][0]
        optimizer.state[first] = read_lbfgs(optimizer, module, to_raw_tree(item), source)
        return []
    if form_of_group(optimizer, optimizer.param_groups[0]) is None:
        raise RecordError(
            f"{source}: Burn has no {type(optimizer).__name__}, so its state cannot be loaded. Start without "
            "the state of the optimizer"
        )
    tree = skeleton_of(module)
    foreign, entries = param_ids(to_raw_tree(model_item)), to_raw_tree(item) or {}
    places = slots_by_parameter(module, tree)
    paths = {slot.id: path for path, slot in slots(tree)}
    states: list[dict[str, Any]] = []
    without, read = [], 0
    for group, parameter in members(optimizer):
        form = form_of_group(optimizer, group)
        if form is SGD and not group["momentum"]:
            states.append({})
            continue
        own_slots = places.get(id(parameter), ())
        readable = {} if has_joint_moments(form, parameter, own_slots) else entries
        nodes = [(slot, readable.get(foreign.get(paths[slot.id], ""))) for slot in own_slots]
        if not nodes or any(node is None for _, node in nodes):
            without += [paths[slot.id] for slot, node in nodes if node is None]
            states.append(dict(optimizer.state.get(parameter, {})))
            continue
        read += 1
        new = _initial_state(form, group, parameter)
        saved = read_state(form, nodes, parameter, source)
        if VELOCITY in saved:
            saved = {BUFFER: saved[VELOCITY].mul_(1 - group["momentum"])}
        wanted = saved if form is ADAFACTOR else new
        saved = {key: to_entry(saved[key], key, group, parameter) for key in saved if key in wanted}
        states.append({**new, **saved})
    if without and not read:
        raise RecordError(f"{source} lacks the state of all {len(without)} parameters of the model")
    assign(optimizer, states)
    return without


def _initial_state(form: Tree, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return the state that an optimizer with *form* creates for *parameter* at its first step."""
    if form is SGD:
        return {BUFFER: None} if group["momentum"] else {}
    if form is ADAFACTOR:
        return {STEP: new_step(0, group, parameter)}
    optional = {
        "max_exp_avg_sq": group.get("amsgrad"),
        "grad_avg": group.get("centered"),
        BUFFER: form is MUON or group.get("momentum", 0) > 0,
    }
    names = {key for key in keys(form) if optional.get(key, True)} | ({BUFFER} if form is MUON else set())
    state = {name: torch.zeros_like(parameter, requires_grad=False) for name in sorted(names - {STEP})}
    counts = STEP in names or form is RMS_PROP
    return {STEP: new_step(0, group, parameter), **state} if counts else state


def _names_in_order(optimizer: torch.optim.Optimizer, module: nn.Module) -> list[str]:
    """Return the names of the parameters in the order of *optimizer*; empty if *module* lacks one.

    A state by number belongs to the parameter of that number, which parameter groups and freezing change.
    """
    paths = {id(parameter): path for path, parameter in module.named_parameters()}
    names = [paths.get(id(parameter), "") for _, parameter in members(optimizer)]
    return names if all(names) else []


def _check(optimizer: torch.optim.Optimizer, module: nn.Module, rest: Tree) -> None:
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
    names, saved = _names_in_order(optimizer, module), list(rest.get("names", ()))
    if names and saved and names != saved:
        moved = next((pair for pair in zip(saved, names, strict=False) if pair[0] != pair[1]), ("", ""))
        raise RecordError(
            f"the saved state has {moved[0]} at the place in the parameter groups at which the optimizer has "
            f"{moved[1]}. Use the same parameter groups, and freeze the same parameters"
        )


def _merge_options(group: Mapping[str, Any], saved: Tree) -> dict[str, Any]:
    """Return the options *saved*, with tuples where *group* has tuples, because files store them as lists."""
    return {
        key: tuple(value) if isinstance(group.get(key), tuple) and isinstance(value, list) else _copy(value)
        for key, value in decode_state(saved).items()
    }


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _encode_options(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> Tree:
    """Return *groups* of options as trees; the tuples that are defaults of *optimizer* become lists."""
    tuples = {key for key, value in optimizer.defaults.items() if type(value) is tuple}
    name = f"a parameter group of the {type(optimizer).__name__}"
    return [
        encode_state(
            {
                key: list(group[key]) if key in tuples and type(group[key]) is tuple else group[key]
                for key in group
            },
            name,
        )
        for group in groups
    ]


def _encode_entries(optimizer: torch.optim.Optimizer, entries: Any) -> Tree:
    """Return the *entries* of the state of a parameter as a tree."""
    name = f"the state of the {type(optimizer).__name__}"
    if not isinstance(entries, dict):
        return encode_state(entries, name)
    if wrong := [key for key in entries if type(key) is not str]:
        raise RecordError(f"{name} has the key {wrong[0]!r}, which is not text. Use {str(wrong[0])!r}")
    return encode_state(dict(entries), name)


def _encode_state_dict(optimizer: torch.optim.Optimizer) -> Tree:
    """Return the complete ``state_dict``, with the numbers of the parameters as text."""
    tree = dict(optimizer.state_dict())
    state, groups = tree.pop("state", {}), tree.pop("param_groups", [])
    return {
        **encode_state(tree, f"{type(optimizer).__name__}.state_dict()"),
        "state": {str(key): _encode_entries(optimizer, entries) for key, entries in state.items()},
        "param_groups": _encode_options(optimizer, groups),
    }


def _load_state_dict(optimizer: torch.optim.Optimizer, saved: Tree) -> None:
    """Load a complete ``state_dict``, whose integer keys are stored as text.

    torch casts tensors to the dtype of their parameter, and copies containers inexactly, for example a deque
    without its length, so these values are set afterwards.
    """
    rest = {key: decode_state(value) for key, value in saved.items() if key not in ("state", "param_groups")}
    groups = saved.get("param_groups", [])
    groups = [_merge_options(now, then) for now, then in zip(optimizer.param_groups, groups, strict=False)]
    state = {int(key) if key.isdigit() else key: entries for key, entries in saved.get("state", {}).items()}
    is_plain = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict
    loaded = {
        key: _wrap_containers(entries) if is_plain and type(key) is int else decode_state(entries)
        for key, entries in state.items()
    }
    try:
        optimizer.load_state_dict({**rest, "state": loaded, "param_groups": groups})
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"the saved state does not fit this {type(optimizer).__name__}: {error}") from error
    for index, (group, parameter) in enumerate(members(optimizer)):
        _restore_entries(optimizer.state.get(parameter, {}), state.get(index, {}), group, parameter)


def _wrap_containers(entries: Tree) -> Any:
    """Return the entries of a parameter without those that torch would copy."""
    if not isinstance(entries, dict):
        return decode_state(entries)
    return {key: _OPAQUE if isinstance(entry, dict | list | str) else entry for key, entry in entries.items()}


def _restore_entries(loaded: Any, saved: Tree, group: Mapping[str, Any], parameter: Tensor) -> None:
    """Set the entries that torch has cast, and those that it has not received."""
    for key, entry in saved.items() if isinstance(saved, dict) else ():
        now = loaded.get(key)
        if now is _OPAQUE:
            loaded[key] = _decode_entry(entry, key, group, parameter)
        elif isinstance(entry, Tensor) and isinstance(now, Tensor) and now.dtype != entry.dtype:
            loaded[key] = entry.to(now.device, copy=True)


def _decode_entry(entry: Tree, key: str, group: Mapping[str, Any], parameter: Tensor) -> Any:
    """Return the *entry* of a state, from `encode_state`, with its tensors on the device of *parameter*."""
    if isinstance(entry, Tensor):
        return to_entry(entry, key, group, parameter)

    def move(tensor: Tensor) -> Tensor:
        return tensor.detach().to(parameter.device, copy=True)

    return decode_state(replace_tensors(entry, move))
