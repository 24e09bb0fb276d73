"""Loading of an optimizer's record that Burn wrote, also 0.22, whose parameter ids differ from ours."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.dotted_names import param_ids
from stages.records.record_tree import Tree
from stages.records.tensors import to_raw_tree
from stages.records.torch_modules.module_record import skeleton_of
from stages.records.torch_modules.skeleton import slots
from stages.records.torch_optimizers.burn_state import (
    ADAFACTOR,
    BUFFER,
    MUON,
    RMS_PROP,
    SGD,
    STEP,
    VELOCITY,
    assign,
    form_of_group,
    has_joint_moments,
    keys,
    members,
    new_step,
    options_of,
    read_state,
    slots_by_parameter,
    to_entry,
)
from stages.records.torch_optimizers.lbfgs import read_lbfgs


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
        state = read_lbfgs(optimizer, module, to_raw_tree(item), source)
        _, *others = members(optimizer)
        groups = [options_of(group) for group in optimizer.param_groups]
        assign(optimizer, groups, [state, *({} for _ in others)])
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
    assign(optimizer, [options_of(group) for group in optimizer.param_groups], states)
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
