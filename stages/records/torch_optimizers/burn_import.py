"""Loading of an optimizer's record that Burn wrote, also 0.22, whose parameter ids differ from ours."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.dotted_names import encode_param_id, is_parameter
from stages.records.record_tree import Tree, iter_leaves
from stages.records.tensors import to_raw_tree
from stages.records.torch_modules.module_record import skeleton_of
from stages.records.torch_modules.skeleton import slots
from stages.records.torch_optimizers.burn_state import (
    STEP,
    assign,
    form_of,
    is_muon,
    members,
    new_step,
    options_of,
    read_muon,
    read_state,
    slots_by_parameter,
    to_entry,
)
from stages.records.torch_optimizers.lbfgs import read_lbfgs

RANK = "__rank"
"""The entry of a parameter in Burn 0.22 that has its number of dimensions."""


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
    form = form_of(optimizer)
    if form is None and not any(map(is_muon, optimizer.param_groups)):
        raise RecordError(
            f"{source}: Burn has no {type(optimizer).__name__}, so its state cannot be loaded. Start without "
            "the state of the optimizer"
        )
    tree = skeleton_of(module)
    foreign, entries = _ids(model_item), _in_layout_of_021(to_raw_tree(item))
    places = slots_by_parameter(module, tree)
    paths = {slot.id: path for path, slot in slots(tree)}
    states: list[dict[str, Any]] = []
    without, read = [], 0
    for group, parameter in members(optimizer):
        if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
            states.append({})
            continue
        own_slots = places.get(id(parameter), ())
        nodes = [(slot, entries.get(foreign.get(paths[slot.id], ""))) for slot in own_slots]
        if not nodes or any(node is None for _, node in nodes):
            without += [paths[slot.id] for slot, node in nodes if node is None]
            states.append(dict(optimizer.state.get(parameter, {})))
            continue
        read += 1
        if form is None:
            states.append(read_muon(group, parameter, nodes, source))
            continue
        new = _initial_state(optimizer, group, parameter)
        saved = read_state(form, nodes, parameter, source)
        saved = {key: to_entry(saved[key], key, group, parameter) for key in saved if key in new}
        states.append({**new, **saved})
    if without and not read:
        raise RecordError(f"{source} lacks the state of all {len(without)} parameters of the model")
    assign(optimizer, [options_of(group) for group in optimizer.param_groups], states)
    return without


def _initial_state(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: Tensor
) -> dict[str, Any]:
    """Return the state that *optimizer* creates for *parameter* at its first step."""

    def zeros() -> Tensor:
        return torch.zeros_like(parameter, requires_grad=False)

    step = new_step(0, group, parameter)
    state: dict[str, Any]
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        state = {STEP: step, "exp_avg": zeros(), "exp_avg_sq": zeros()}
        return {**state, "max_exp_avg_sq": zeros()} if group["amsgrad"] else state
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": None} if group["momentum"] else {}
    if isinstance(optimizer, torch.optim.RMSprop):
        state = {STEP: step, "square_avg": zeros()}
        state |= {"momentum_buffer": zeros()} if group["momentum"] > 0 else {}
        return state | ({"grad_avg": zeros()} if group["centered"] else {})
    return {STEP: step, "sum": zeros()}


def _in_layout_of_021(entries: Tree) -> dict[str, Tree]:
    """Return *entries*, also of 0.22, with ids as in a model's record and the rank where 0.21 has it."""
    converted = {}
    for key, node in entries.items() if isinstance(entries, dict) else ():
        if isinstance(node, dict) and RANK in node and key.isdecimal():
            fields = {name: _without_ids(field) for name, field in node.items() if name != RANK}
            converted[encode_param_id(int(key))] = {"V1": {f"Rank{node[RANK]}": fields}}
        else:
            converted[key] = node
    return converted


def _without_ids(node: Tree) -> Tree:
    """Return *node* with each tensor in place of the tensor and its id."""
    if is_parameter(node):
        return node["param"]
    return {key: _without_ids(field) for key, field in node.items()} if isinstance(node, dict) else node


def _ids(model_item: Tree) -> dict[str, str]:
    """Return the id of the parameter at each path of a model's record."""
    leaves = iter_leaves(to_raw_tree(model_item))
    return {
        path.removesuffix(".id"): leaf
        for path, leaf in leaves
        if path.endswith(".id") and isinstance(leaf, str)
    }
