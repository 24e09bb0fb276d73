"""Burn's record of Muon, and PyTorch's state from it.

Burn's velocity is a sum of gradients (its default, without dampening), and PyTorch's buffer is their moving
average: the velocity is the buffer divided by 1 - momentum. The record does not restore the buffer bit for
bit, so the supplement holds the complete state.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stages.records.record_tree import Map, Tree, Variant
from stages.records.tensors import lazy_tensor, view_slot
from stages.records.torch_modules.skeleton import Slot
from stages.records.torch_optimizers.burn_state import read_state
from stages.records.torch_optimizers.torch_state import members, slots_by_parameter

BUFFER = "momentum_buffer"
MUON = {"momentum": {"velocity": BUFFER}}
"""Burn's ``MuonState``, with PyTorch's entry for a velocity, which is scaled."""


def is_muon(group: Mapping[str, Any]) -> bool:
    """Return whether *group* holds the options of a Muon."""
    return "ns_coefficients" in group and "momentum" in group


def muon_record(optimizer: torch.optim.Optimizer, module: nn.Module, skeleton: Tree) -> Tree:
    """Return Burn's record of the matrices that Muon trains; None if *optimizer* has no group for Muon.

    Burn's Muon trains matrices only, so the parameters that AdamW trains have no entry.
    """
    if not any(is_muon(group) for group in optimizer.param_groups):
        return None
    places = slots_by_parameter(module, skeleton)
    record = Map()
    for group, parameter in members(optimizer):
        buffer = optimizer.state.get(parameter, {}).get(BUFFER)
        if not is_muon(group) or buffer is None:
            continue
        for slot in places.get(id(parameter), ()):
            scaled = partial(_velocity, slot, 1 - group["momentum"])
            velocity = lazy_tensor(scaled, (buffer,), tuple(view_slot(slot, parameter).shape))
            state = {"momentum": {"velocity": velocity}}
            record[slot.id] = Variant("V1", 0, Variant("Rank2", 2, state))
    return record


def read_muon(
    group: Mapping[str, Any], parameter: Tensor, nodes: list[tuple[Slot, Tree]], source: str
) -> dict[str, Any]:
    """Return PyTorch's state of *parameter* from Burn's states *nodes* of its slots.

    Raises:
        RecordError: If a state has another structure or shape. The message starts with *source*.
    """
    buffer = read_state(MUON, nodes, parameter, source)[BUFFER]
    return {BUFFER: buffer.mul_(1 - group["momentum"])}


def _velocity(slot: Slot, scale: float, buffer: Tensor) -> Tensor:
    return view_slot(slot, buffer) / scale
