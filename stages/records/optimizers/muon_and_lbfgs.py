"""Burn's records of Muon and L-BFGS, whose state is not PyTorch's entry by entry.

Muon: Burn's velocity sums gradients (its default, without dampening), PyTorch's buffer averages them, so the
two differ by the factor 1 - momentum. L-BFGS: both keep vectors over all parameters, Burn in the order and
with the axes of its modules. Neither record brings PyTorch's state back bit for bit, which stays beside it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.modules.described import skeleton_of
from stages.records.modules.slots import Slot, slots
from stages.records.optimizers.moments import lazily, read
from stages.records.optimizers.state import members, parameters_of, places_of
from stages.records.tensors import part, tensor
from stages.records.tree import Map, RawTensor, Some, Tree, Variant

BUFFER = "momentum_buffer"
MUON = {"momentum": {"velocity": BUFFER}}
"""Burn's ``MuonState``, with PyTorch's entry for a velocity that is scaled."""
FIRST_STEP_SIZE = 1.0
"""``t`` of Burn's ``LBFGSState`` before the first step."""


def muon_record(optimizer: torch.optim.Optimizer, module: nn.Module, skeleton: Tree) -> Tree:
    """Return Burn's record of the matrices that Muon trains; None if *optimizer* is another one.

    Burn's Muon takes matrices only, so parameters that AdamW trains beside it have no entry.
    """
    if not any(is_muon(group) for group in optimizer.param_groups):
        return None
    places = places_of(module, skeleton)
    record = Map()
    for group, parameter in members(optimizer):
        buffer = optimizer.state.get(parameter, {}).get(BUFFER)
        if not is_muon(group) or buffer is None:
            continue
        for slot in places.get(id(parameter), ()):
            scaled = partial(_velocity, slot, buffer, 1 - group["momentum"])
            velocity = lazily(scaled, buffer.dtype, tuple(part(slot, parameter).shape))
            state = {"momentum": {"velocity": velocity}}
            record[slot.id] = Variant("V1", 0, Variant("Rank2", 2, state))
    return record


def read_muon(
    group: Mapping[str, Any], parameter: Tensor, nodes: list[tuple[Slot, Tree]], where: str
) -> dict[str, Any]:
    """Return PyTorch's state of *parameter* from Burn's states *nodes* of its slots.

    Raises `RecordError`, which *where* begins, for states of another form or shape.
    """
    buffer = read(MUON, nodes, parameter, where)[BUFFER]
    return {BUFFER: buffer.mul_(1 - group["momentum"])}


def lbfgs_record(optimizer: torch.optim.LBFGS, module: nn.Module, skeleton: Tree) -> Tree:
    """Return Burn's ``LBFGSState`` of *optimizer*.

    None if a parameter of *optimizer* is not in the record of *module* exactly once, as tied ones are.
    """
    order = _Order.of(optimizer, module, skeleton)
    if order is None:
        return None
    state = optimizer.state.get(next(parameters_of(optimizer)), {})
    vectors = {name: state.get(name) for name in ("d", "prev_flat_grad")}
    options = {key: None if flat is None else Some(order.burn(flat)) for key, flat in vectors.items()}
    loss, step_size = state.get("prev_loss"), state.get("t")
    return {
        "history_s": [order.burn(flat) for flat in state.get("old_stps") or ()],
        "history_y": [order.burn(flat) for flat in state.get("old_dirs") or ()],
        "d": options["d"],
        "t": Some(FIRST_STEP_SIZE if step_size is None else float(step_size)),
        "prev_flat_grad": options["prev_flat_grad"],
        "prev_loss": None if loss is None else Some(float(loss)),
        "g_iter": int(state.get("n_iter", 0)),
    }


def read_lbfgs(optimizer: torch.optim.LBFGS, module: nn.Module, item: Tree, where: str) -> dict[str, Any]:
    """Return PyTorch's state of the first parameter from Burn's ``LBFGSState`` *item*.

    Raises `RecordError`, which *where* begins, if *item* is another optimizer's or another model's.
    """
    order = _Order.of(optimizer, module, None)
    if order is None:
        raise RecordError(f"{where}: L-BFGS has parameters that are not once in the record of the model")
    fields = {"history_s", "history_y", "d", "t", "prev_flat_grad", "prev_loss", "g_iter"}
    if not isinstance(item, dict) or not {"history_s", "history_y", "g_iter"} <= item.keys() <= fields:
        raise RecordError(f"{where}: expected L-BFGS's {', '.join(sorted(fields))}")
    steps = [order.torch(vector, where) for vector in item["history_s"]]
    differences = [order.torch(vector, where) for vector in item["history_y"]]
    if len(steps) != len(differences) or not isinstance(item["g_iter"], int):
        raise RecordError(f"{where}: its history has {len(steps)} steps and {len(differences)} gradients")
    products = [y.dot(s) for y, s in zip(differences, steps, strict=True)]
    vectors = {name: item.get(name) for name in ("d", "prev_flat_grad")}
    state = {name: None if flat is None else order.torch(flat, where) for name, flat in vectors.items()}
    return {
        **state,
        "t": item.get("t"),
        "old_dirs": differences,
        "old_stps": steps,
        "ro": [1.0 / product for product in products],
        "H_diag": products[-1] / differences[-1].dot(differences[-1]) if products else 1,
        "prev_loss": item.get("prev_loss"),
        "func_evals": 0,
        "n_iter": item["g_iter"],
    }


class _Order:
    """The order of the elements in Burn's flat vectors and in PyTorch's."""

    def __init__(self, parameters: Sequence[Tensor], shown: Sequence[tuple[int, Slot]]) -> None:
        """*shown* has the index of the parameter and the slot of each part, in Burn's order."""
        self._parameters = parameters
        self._shown = shown
        places, start = [], 0
        for parameter in parameters:
            places.append(torch.arange(start, start + parameter.numel()).view(parameter.shape))
            start += parameter.numel()
        self._from_torch = torch.cat([part(slot, places[index]).reshape(-1) for index, slot in shown])

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, module: nn.Module, skeleton: Tree) -> "_Order | None":
        """Return the order for *optimizer*; None if *module*'s record does not have each element once."""
        parameters = list(parameters_of(optimizer))
        index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
        tree = skeleton_of(module) if skeleton is None else skeleton
        named = dict(module.named_parameters(remove_duplicate=False))
        shown = [
            (index_of[id(named[slot.name])], slot)
            for _, slot in slots(tree)
            if slot.name in named and id(named[slot.name]) in index_of
        ]
        if not shown:
            return None
        order = cls(parameters, shown)
        expected = torch.arange(sum(parameter.numel() for parameter in parameters))
        return order if torch.equal(order._from_torch.sort().values, expected) else None

    def burn(self, flat: Tensor) -> RawTensor:
        """Return PyTorch's vector *flat* in Burn's order."""
        return lazily(lambda: flat[self._from_torch.to(flat.device)], flat.dtype, tuple(flat.shape))

    def torch(self, vector: Tree, where: str) -> Tensor:
        """Return Burn's *vector* in PyTorch's order."""
        if not isinstance(vector, RawTensor) or vector.shape != self._from_torch.shape:
            raise RecordError(f"{where}: expected vectors of {self._from_torch.numel()} elements")
        like = self._parameters[0]
        flat = torch.empty(vector.shape, dtype=like.dtype, device=like.device)
        flat[self._from_torch.to(like.device)] = tensor(vector).to(like.device, like.dtype)
        return flat


def is_muon(group: Mapping[str, Any]) -> bool:
    """Return whether the options *group* are those of a Muon."""
    return "ns_coefficients" in group and "momentum" in group


def _velocity(slot: Slot, buffer: Tensor, scale: float) -> Tensor:
    return part(slot, buffer) / scale
