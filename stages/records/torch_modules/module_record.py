"""Burn's record of a torch module: the record of the Burn module that would have the same fields.

A module of the user's own has a field for each parameter, buffer and child, by their names. One whose Burn
counterpart is laid out otherwise says so, in the language of `stages.records.torch_modules.layers`::

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.scale = nn.Parameter(torch.ones(2, 3))

        def burn_record(self):
            return {"head": {"linear": "fc", "scale": "scale.T"}, "size": None}

Tensors that it leaves out are not in the record, but in what `beside` gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stages.contracts.errors import RecordError
from stages.records.param_ids import derive_param_id
from stages.records.record_tree import Map, Some, Tree, Variant
from stages.records.tensors import check_recordable, to_raw, view_slot
from stages.records.torch_modules.layers import layer_layout, unlike_burn
from stages.records.torch_modules.skeleton import Constant, Rows, Slot, fill_slots, slots

COUNTER = "num_batches_tracked"
"""PyTorch's batch norms count; Burn's do not."""
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
"""Types that come back bit for bit from a file in full precision, F32 and I32."""


@dataclass(frozen=True)
class _Place:
    """A module, the prefix of its names in the ``state_dict``, and its path in the record."""

    module: nn.Module
    prefix: str
    path: str

    def field(self, key: object) -> "_Place":
        """The same module at the field *key* of this place."""
        return _Place(self.module, self.prefix, f"{self.path}.{key}" if self.path else str(key))

    def child(self, module: nn.Module, name: str) -> "_Place":
        """The child *name*, at this very path."""
        return _Place(module, f"{self.prefix}{name}.", self.path)


def skeleton_of(module: nn.Module) -> Tree:
    """The record of *module* with a `Slot` for each parameter; its structure alone decides it.

    Raises `RecordError` where ``burn_record`` names what is not there, and for lazy parameters.
    """
    return _describe(_Place(module, "", ""))


def record_of(module: nn.Module, state: Mapping[str, Any] | None = None, tree: Tree = None) -> Tree:
    """*module*'s record, with the tensors of *state* (its own where None) as they are when they are written.

    *tree* is its skeleton, for who has it already. Raises `RecordError` for tensors no record can hold.
    """
    tensors = module.state_dict() if state is None else state

    def parameter(slot: Slot) -> Tree:
        if slot.name not in tensors:
            raise RecordError(
                f"{type(module).__name__} has a tensor {slot.name!r} that its state_dict has not: "
                "leave it out of the record with a burn_record method"
            )
        check_recordable(tensors[slot.name], slot.name)
        return {"id": slot.id, "param": to_raw(view_slot(slot, tensors[slot.name]))}

    return fill_slots(skeleton_of(module) if tree is None else tree, parameter)


def fields_unlike_burn(module: nn.Module) -> list[str]:
    """Return the fields of *module*'s record that Burn does not load, each with the reason.

    Burn's layer and transformer norms are narrower than PyTorch's. The record is written all the same, and
    read back; in Burn it needs a module with a ``burn_record`` of its own.
    """
    return [
        f"{name}.{reason}" if name else reason
        for name, child in module.named_modules()
        for reason in unlike_burn(child)
    ]


def unrecorded_entries(module: nn.Module, tree: Tree) -> dict[str, Any]:
    """The entries of *module*'s ``state_dict`` that no slot of its skeleton *tree* holds."""
    held = {slot.name for _, slot in slots(tree)}
    return {name: entry for name, entry in module.state_dict().items() if name not in held}


def inexact_entries(module: nn.Module, tree: Tree) -> dict[str, Tensor]:
    """The entries that a record in full precision holds, but does not bring back bit for bit."""
    held = {slot.name for _, slot in slots(tree)}
    entries = module.state_dict().items()
    return {name: entry for name, entry in entries if name in held and entry.dtype not in EXACT_DTYPES}


def module_supplement(module: nn.Module) -> dict[str, Any]:
    """All of *module*'s ``state_dict`` that its record in full precision does not bring back bit for bit."""
    tree = skeleton_of(module)
    return {**unrecorded_entries(module, tree), **inexact_entries(module, tree)}


def _describe(place: _Place) -> Tree:
    module = place.module
    if hasattr(module, "burn_record"):
        return _resolve(cast(Any, module).burn_record(), place)
    _, _, children = _members(module)
    if children.keys() == {"_orig_mod"}:  # what torch.compile gives stands for the module that it was given
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
    raise RecordError(f"burn_record of {type(place.module).__name__} has a {layout!r}, expected names")


def _resolve_name(text: str, rows: Rows | None, place: _Place) -> Tree:
    """The slot, or the record of the child, that *text* names; None where that is None."""
    name = text.removesuffix(".T")
    if not _has_member(place.module, text):
        raise RecordError(
            f"burn_record of {type(place.module).__name__} names {name!r}, which it has not as a parameter, "
            "a buffer of its state_dict or a module"
        )
    found = _member(place.module, name)
    if isinstance(found, nn.Module):
        return _describe(place.child(found, name))
    if found is None:
        return None
    return _slot(found, place.prefix + name, place.path, rows=rows, transposed=name != text)


def _slot(tensor: Tensor, name: str, path: str, *, rows: Rows | None, transposed: bool) -> Slot:
    if is_lazy(tensor):
        raise RecordError(f"{name} is lazy and has no shape yet: run a batch through the module first")
    if transposed and tensor.dim() != 2:
        raise RecordError(f"{name} is of shape {list(tensor.shape)}, and only a matrix can be transposed")
    start, stop = (rows.start, rows.stop) if rows else (None, None)
    return Slot(name, start, stop, transposed, derive_param_id(path))


def _own_layout(module: nn.Module) -> Tree:
    """A field for each parameter, buffer and child; lists for torch's lists, None for what has nothing."""
    parameters, buffers, children = _members(module)
    names = {name: name for name in [*parameters, *buffers, *children]}
    if isinstance(module, nn.Sequential | nn.ModuleList) and len(names) == len(children):
        return list(names)
    if isinstance(module, nn.ParameterList):
        return list(names)
    if isinstance(module, nn.ModuleDict | nn.ParameterDict):
        return Map(names)
    return names or None


def _with_extras(tree: Tree, place: _Place) -> Tree:
    """*tree*, a layer's, with what a subclass of that layer has beside the layer's tensors."""
    used = {slot.name for _, slot in slots(tree)}
    parameters, buffers, children = _members(place.module)
    extras = [name for name, tensor in {**parameters, **buffers}.items() if tensor is not None]
    extras = [name for name in extras if place.prefix + name not in used and name != COUNTER]
    for name, child in children.items():
        names = [f"{place.prefix}{name}.{key}" for key in child.state_dict()] if child else []
        extras += [name] if names and not used.intersection(names) else []
    if not extras:
        return tree
    fields = tree if isinstance(tree, dict) else {"layers": tree}
    return {**fields, **_resolve({f"{name}_" if name in fields else name: name for name in extras}, place)}


def _layout_names(layout: Tree) -> list[str]:
    match layout:
        case str():
            return [layout]
        case Rows() | Some() | Variant():
            return _layout_names(layout.name if isinstance(layout, Rows) else layout.value)
        case dict() | list() | tuple():
            values = layout.values() if isinstance(layout, dict) else layout
            return [name for value in values for name in _layout_names(value)]
    return []


def _has_member(module: nn.Module, text: str) -> bool:
    owner, _, last = text.removesuffix(".T").rpartition(".")
    try:
        return any(last in members for members in _members(module.get_submodule(owner)))
    except AttributeError:
        return False


def _member(module: nn.Module, name: str) -> Tensor | nn.Module | None:
    owner, _, last = name.rpartition(".")
    parameters, buffers, children = _members(module.get_submodule(owner))
    members: dict[str, Tensor | nn.Module | None] = {**parameters, **buffers, **children}
    return members[last]


def _members(
    module: nn.Module,
) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None], dict[str, Any]]:
    """Parameters, buffers of the ``state_dict`` and children of *module* itself; those that are None too."""
    kept = vars(module)
    buffers = {
        key: at for key, at in kept["_buffers"].items() if key not in kept["_non_persistent_buffers_set"]
    }
    return dict(kept["_parameters"]), buffers, dict(kept["_modules"])
