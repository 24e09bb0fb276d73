"""An optimizer that goes on from a record that Burn wrote, whose ids are not ours."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.record_tree import Tree, iter_leaves
from stages.records.tensors import to_raw_tree
from stages.records.torch_modules.module_record import skeleton_of
from stages.records.torch_modules.skeleton import slots
from stages.records.torch_optimizers.burn_state import STEP, form_of, read_state
from stages.records.torch_optimizers.lbfgs import read_lbfgs
from stages.records.torch_optimizers.muon import is_muon, read_muon
from stages.records.torch_optimizers.torch_state import (
    assign,
    members,
    new_step,
    options_of,
    slots_by_parameter,
    to_entry,
)


def load_burn_optimizer(
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    item: Tree,
    model_item: Tree,
    *,
    source: str = "the optimizer's record",
) -> list[str]:
    """Give *optimizer* the state of a record that Burn wrote, and the paths of parameters it has none for.

    Its ids are those of *model_item*, the record of the model that lies beside it. What it has no word of
    (options, RMSProp's step) stays or begins as new. Raises `RecordError` where the two do not fit
    *optimizer*, and then nothing has changed.
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
            f"{source}: Burn has no {type(optimizer).__name__}, so it cannot be continued from it"
        )
    tree = skeleton_of(module)
    foreign, entries, places = _ids(model_item), to_raw_tree(item) or {}, slots_by_parameter(module, tree)
    paths = {slot.id: path for path, slot in slots(tree)}
    states, without = [], []
    for group, parameter in members(optimizer):
        own = places.get(id(parameter), ())
        found = [(slot, entries.get(foreign.get(paths[slot.id], ""))) for slot in own]
        if not found or any(node is None for _, node in found):
            without += [paths[slot.id] for slot, node in found if node is None]
            states.append(dict(optimizer.state.get(parameter, {})))
            continue
        if form is None:
            states.append(read_muon(group, parameter, found, source))
            continue
        new = _new(optimizer, group, parameter)
        saved = read_state(form, found, parameter, source)
        saved = {key: to_entry(saved[key], key, group, parameter) for key in saved if key in new}
        states.append({**new, **saved})
    assign(optimizer, [options_of(group) for group in optimizer.param_groups], states)
    return without


def _new(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """The state that *optimizer* would give *parameter* at its first step."""

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


def _ids(model_item: Tree) -> dict[str, str]:
    """The id that a model's record gives the parameter at each path."""
    found = iter_leaves(to_raw_tree(model_item))
    return {
        path.removesuffix(".id"): leaf
        for path, leaf in found
        if path.endswith(".id") and isinstance(leaf, str)
    }
