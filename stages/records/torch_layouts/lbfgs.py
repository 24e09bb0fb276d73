"""Burn's record of L-BFGS, and PyTorch's state from it.

Both keep vectors over all parameters: Burn in the order and with the axes of its modules, PyTorch in the
order of the parameters. The record does not restore PyTorch's state bit for bit, so the supplement holds the
complete state.
"""

from typing import Any

import torch
from torch import Tensor, nn

from stages.contracts.errors import RecordError
from stages.records.record_tree import RawTensor, Some, Tree
from stages.records.tensors import from_raw, lazy_tensor, view_slot
from stages.records.torch_layouts.module_record import skeleton_of
from stages.records.torch_layouts.skeleton import slots

FIRST_STEP_SIZE = 1.0
"""``t`` of Burn's ``LBFGSState`` before the first step."""


def lbfgs_record(optimizer: torch.optim.LBFGS, module: nn.Module, skeleton: Tree) -> Tree:
    """Return Burn's ``LBFGSState`` of *optimizer*.

    Return None if a parameter of *optimizer* is not in the record of *module* exactly once, for example a
    tied one.
    """
    order = _Order.of(optimizer, module, skeleton)
    if order is None:
        return None
    state = optimizer.state.get(optimizer.param_groups[0]["params"][0], {})
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


def read_lbfgs(optimizer: torch.optim.LBFGS, module: nn.Module, item: Tree, source: str) -> dict[str, Any]:
    """Return PyTorch's state of the first parameter from Burn's ``LBFGSState`` *item*.

    Raises:
        RecordError: If *item* is the record of another optimizer or of another model's parameters. The
            message starts with *source*.
    """
    order = _Order.of(optimizer, module, skeleton_of(module))
    if order is None:
        raise RecordError(
            f"{source}: each parameter of L-BFGS must be in the record of the model exactly once. Start "
            "without the state of the optimizer"
        )
    fields = {"history_s", "history_y", "d", "t", "prev_flat_grad", "prev_loss", "g_iter"}
    if not isinstance(item, dict) or not {"history_s", "history_y", "g_iter"} <= item.keys() <= fields:
        raise RecordError(f"{source}: expected L-BFGS's {', '.join(sorted(fields))}")
    steps = [order.torch(vector, source) for vector in item["history_s"]]
    differences = [order.torch(vector, source) for vector in item["history_y"]]
    if len(steps) != len(differences) or not isinstance(item["g_iter"], int):
        raise RecordError(f"{source}: its history has {len(steps)} steps and {len(differences)} gradients")
    products = [y.dot(s) for y, s in zip(differences, steps, strict=True)]
    vectors = {name: item.get(name) for name in ("d", "prev_flat_grad")}
    state = {name: None if flat is None else order.torch(flat, source) for name, flat in vectors.items()}
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
    """The permutation between the elements of Burn's flat vectors and of PyTorch's."""

    def __init__(self, like: Tensor, from_torch: Tensor) -> None:
        """Take a parameter, and the index in PyTorch's vectors of each element of Burn's."""
        self._like = like
        self._from_torch = from_torch

    @classmethod
    def of(cls, optimizer: torch.optim.LBFGS, module: nn.Module, skeleton: Tree) -> "_Order | None":
        """Return the order for *optimizer* if *skeleton* is that of *module*.

        None if *module*'s record does not hold each element exactly once.
        """
        places: dict[int, Tensor] = {}
        start = 0
        parameters = optimizer.param_groups[0]["params"]
        for parameter in parameters:
            places[id(parameter)] = torch.arange(start, start + parameter.numel(), device="cpu").view(
                parameter.shape
            )
            start += parameter.numel()
        named = dict(module.named_parameters(remove_duplicate=False))
        of_slots = ((slot, places.get(id(named.get(slot.name)))) for _, slot in slots(skeleton))
        parts = [view_slot(slot, place).reshape(-1) for slot, place in of_slots if place is not None]
        from_torch = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device="cpu")
        is_complete = torch.equal(from_torch.sort().values, torch.arange(start, device="cpu"))
        return cls(parameters[0], from_torch) if is_complete else None

    def burn(self, flat: Tensor) -> RawTensor:
        """Return PyTorch's vector *flat* in Burn's order."""
        return lazy_tensor(self._permute, (flat,), tuple(flat.shape))

    def _permute(self, flat: Tensor) -> Tensor:
        return flat[self._from_torch.to(flat.device)]

    def torch(self, vector: Tree, source: str) -> Tensor:
        """Return Burn's *vector* in PyTorch's order."""
        if not isinstance(vector, RawTensor) or vector.shape != self._from_torch.shape:
            raise RecordError(f"{source}: expected vectors of {self._from_torch.numel()} elements")
        flat = torch.empty(vector.shape, dtype=self._like.dtype, device=self._like.device)
        flat[self._from_torch.to(flat.device)] = from_raw(vector).to(flat)
        return flat
