"""Burn's record of a torch module: the record of the Burn module that has the same fields.

A user's own module has a field for each parameter, buffer and child, with the same name. If its Burn
counterpart has another layout, define a method ``burn_record``, which returns that layout as described in
`stages.records.torch_layouts.layers`::

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.scale = nn.Parameter(torch.ones(2, 3))

        def burn_record(self):
            return {"head": {"linear": "fc", "scale": "scale.T"}, "size": None}

Tensors that the layout leaves out are not in the record, but in `module_supplement`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stages.contracts.errors import RecordError
from stages.records.dotted_names import derive_param_id
from stages.records.record_tree import Map, Some, Tree, Variant, iter_leaves
from stages.records.tensors import check_recordable, to_raw, view_slot
from stages.records.torch_layouts.layers import layer_layout, unlike_burn
from stages.records.torch_layouts.skeleton import Constant, Rows, Slot, fill_slots, slots

COUNTER = "num_batches_tracked"
"""The buffer in which PyTorch's batch norms count batches; Burn's batch norms have no such field."""
EXACT_DTYPES = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint16,
    torch.uint8,
    torch.bool,
}
"""Dtypes that a file in full precision (F32 and I32) restores bit for bit."""


@dataclass(frozen=True)
class _Place:
    """A module, the prefix of its names in the ``state_dict``, and its path in the record."""

    module: nn.Module
    prefix: str
    path: str

    def field(self, key: object) -> "_Place":
        """Return the place of the field *key* of the same module."""
        return _Place(self.module, self.prefix, f"{self.path}.{key}" if self.path else str(key))

    def child(self, module: nn.Module, name: str) -> "_Place":
        """Return the place of the child *name*, at the same path in the record."""
        return _Place(module, f"{self.prefix}{name}.", self.path)


def skeleton_of(module: nn.Module) -> Tree:
    """Return the record of *module* with a `Slot` for each parameter; it depends on the structure only.

    Raises:
        RecordError: If ``burn_record`` names an attribute that does not exist, or if a parameter is lazy.
    """
    return _describe(_Place(module, "", ""))


def record_of(module: nn.Module, state: Mapping[str, Any] | None = None, tree: Tree = None) -> Tree:
    """Return the record of *module*; the values of its tensors are read when they are written.

    Args:
        module: The module whose structure the record has.
        state: The tensors, by their names in the ``state_dict``. Default: those of *module*.
        tree: The skeleton of *module*, to save the time to build it. Default: `skeleton_of` (module).

    Raises:
        RecordError: If *state* lacks a tensor, or if a record cannot hold one.
    """
    tensors = module.state_dict() if state is None else state
    return record_of_state(tensors, skeleton_of(module) if tree is None else tree, type(module).__name__)


def record_of_state(state: Mapping[str, Any], tree: Tree, owner: str = "the model") -> Tree:
    """Return the record of the tensors *state* in the structure of *tree*, the skeleton of *owner*.

    Raises:
        RecordError: If *state* lacks a tensor, or if a record cannot hold one.
    """

    def parameter(slot: Slot) -> Tree:
        if slot.name not in state:
            raise RecordError(
                f"{owner} has a tensor {slot.name!r} that its state_dict lacks. Define a "
                "burn_record method that leaves it out of the record"
            )
        check_recordable(state[slot.name], slot.name)
        return {"id": slot.id, "param": to_raw(view_slot(slot, state[slot.name]))}

    return fill_slots(tree, parameter)


def fields_unlike_burn(module: nn.Module) -> list[str]:
    """Return the fields of *module*'s record that Burn does not load, each with the reason.

    Burn's layer norms and transformers support less than PyTorch's. This project still writes such a record
    and reads it back; to load it in Burn, define ``burn_record`` and a Burn module with that layout.
    """
    return [
        f"{name}.{reason}" if name else reason
        for name, child in module.named_modules()
        for reason in (*unlike_burn(child), *_describe_extras(child))
    ]


def _describe_extras(module: nn.Module) -> list[str]:
    """Return the tensors that *module*, if it is a layer of torch, has more than Burn's layer, or lacks."""
    layout, place = layer_layout(module), _Place(module, "", "")
    is_of_torch = type(module).__module__.startswith("torch.nn.")
    if layout is None or not is_of_torch or any(map(is_lazy, module.parameters())):
        return []
    if lacking := [name for name in _layout_names(layout) if not _has_member(module, name)]:
        return [f"{lacking[0].removesuffix('.T')}: it is computed from others, and Burn's layer has it alone"]
    extras = _find_extras(_resolve(layout, place), place)
    return [f"{name}: Burn's {type(module).__name__} has no such field" for name in extras]


def module_supplement(module: nn.Module) -> dict[str, Any]:
    """Return the ``state_dict`` entries that a record in full precision does not restore bit for bit.

    An exact resume needs them in addition to `record_of`.
    """
    names_with_slot = {slot.name for _, slot in slots(skeleton_of(module))}
    entries = module.state_dict()
    without_slot = {name: entry for name, entry in entries.items() if name not in names_with_slot}
    inexact = {
        name: entries[name]
        for name in entries
        if name in names_with_slot and entries[name].dtype not in EXACT_DTYPES
    }
    return {**without_slot, **inexact}


def _describe(place: _Place) -> Tree:
    module = place.module
    if hasattr(module, "burn_record"):
        return _resolve(cast(Any, module).burn_record(), place)
    children = dict(module.named_children())
    if children.keys() == {"_orig_mod"}:  # the wrapper of torch.compile: record the original
        return _describe(place.child(children["_orig_mod"], "_orig_mod"))
    layout = layer_layout(module)
    if layout is not None and all(_has_member(module, name) for name in _layout_names(layout)):
        return _with_extras(_resolve(layout, place), place)
    return _resolve(_own_layout(module), place)


def _resolve(layout: Tree, place: _Place) -> Tree:
    match layout:
        case str():
            return _resolve_name(layout, None, place)
        case Rows():
            return _resolve_name(layout.name, layout, place)
        case Constant():
            return replace(layout, id=derive_param_id(place.path))
        case Some():
            inner = _resolve(layout.value, place)
            return None if inner is None else Some(inner)
        case Variant():
            return Variant(layout.name, layout.index, _resolve(layout.value, place.field(layout.name)))
        case dict():
            return type(layout)((key, _resolve(value, place.field(key))) for key, value in layout.items())
        case list() | tuple():
            return type(layout)(_resolve(value, place.field(key)) for key, value in enumerate(layout))
        case None:
            return None
    raise RecordError(
        f"burn_record of {type(place.module).__name__}: expected names of attributes, found {layout!r}"
    )


def _resolve_name(text: str, rows: Rows | None, place: _Place) -> Tree:
    """Return the slot, or the record of the child, that *text* names; None if the attribute is None."""
    name = text.removesuffix(".T")
    if not _has_member(place.module, text):
        raise RecordError(
            f"burn_record of {type(place.module).__name__} names {name!r}, but the module has no such "
            "parameter, buffer of its state_dict or child module"
        )
    member = _member(place.module, name)
    if isinstance(member, nn.Module):
        return _describe(place.child(member, name))
    if member is None:
        return None
    return _slot(member, place.prefix + name, place.path, rows=rows, transposed=name != text)


def _slot(tensor: Tensor, name: str, path: str, *, rows: Rows | None, transposed: bool) -> Slot:
    if is_lazy(tensor):
        raise RecordError(f"{name} is lazy and has no shape yet. Run a batch through the module first")
    if transposed and tensor.dim() != 2:
        raise RecordError(
            f"{name} has the shape {list(tensor.shape)}, and only a matrix can be transposed. Remove the .T "
            "from its name in burn_record"
        )
    start, stop = (rows.start, rows.stop) if rows else (None, None)
    return Slot(name, start, stop, transposed, derive_param_id(path))


def _own_layout(module: nn.Module) -> Tree:
    """Return a field for each parameter, buffer and child.

    A list for torch's lists; None for an empty module.
    """
    names = {name: name for name in _members(module)}
    if isinstance(module, nn.Sequential | nn.ModuleList) and names.keys() == vars(module)["_modules"].keys():
        return list(names)
    if isinstance(module, nn.ParameterList):
        return list(names)
    if isinstance(module, nn.ModuleDict | nn.ParameterDict):
        return Map(names)
    return names or None


def _with_extras(tree: Tree, place: _Place) -> Tree:
    """Return *tree*, the fields of a layer, with the additional tensors of a subclass of that layer."""
    if not (extras := _find_extras(tree, place)):
        return tree
    fields = tree if isinstance(tree, dict) else {"layers": tree}
    return {**fields, **_resolve({f"{name}_" if name in fields else name: name for name in extras}, place)}


def _find_extras(tree: Tree, place: _Place) -> list[str]:
    """Return the names of the tensors and children of the layer at *place* that *tree*, its fields, lacks."""
    used = {slot.name for _, slot in slots(tree)}
    extras = []
    for name, member in _members(place.module).items():
        if isinstance(member, nn.Module):
            names = {f"{place.prefix}{name}.{key}" for key in member.state_dict()}
            extras += [name] if names and not used & names else []
        elif member is not None and place.prefix + name not in used and name != COUNTER:
            extras.append(name)
    return extras


def _layout_names(layout: Tree) -> list[str]:
    leaves = (leaf for _, leaf in iter_leaves(layout))
    return [leaf.name if isinstance(leaf, Rows) else leaf for leaf in leaves if isinstance(leaf, str | Rows)]


def _has_member(module: nn.Module, text: str) -> bool:
    try:
        _member(module, text.removesuffix(".T"))
    except (AttributeError, KeyError):
        return False
    return True


def _member(module: nn.Module, name: str) -> Tensor | nn.Module | None:
    *owners, last = name.split(".")
    return _members(reduce(getattr, owners, module))[last]


def _members(module: nn.Module) -> dict[str, Tensor | nn.Module | None]:
    """Return *module*'s own parameters, persistent buffers and children, including those that are None."""
    members: dict[str, Tensor | nn.Module | None] = {}
    for table in ("_parameters", "_buffers", "_modules"):
        members |= getattr(module, table).items()  # those of TorchScript are not dicts
    hidden = vars(module)["_non_persistent_buffers_set"]
    return {name: member for name, member in members.items() if name not in hidden}
