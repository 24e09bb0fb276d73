"""Loading of a record, or of a selection of its tensors, into a module.

Every name that does not fit is reported.
"""

import logging
import re
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from stages.contracts.errors import RecordError
from stages.contracts.text import join_names
from stages.records.dotted_names import flatten, has_derived_ids, unflatten
from stages.records.record_tree import (
    FLOATS,
    Layout,
    OfTorch,
    RawTensor,
    Some,
    Tree,
    Variant,
    fields_of,
    iter_leaves,
    unwrap,
)
from stages.records.tensors import DTYPE_NAMES, from_raw, join_slots, to_raw_tree, view_slot
from stages.records.torch_layouts.module_record import skeleton_of
from stages.records.torch_layouts.skeleton import Constant, Slot, slots

log = logging.getLogger(__name__)

MAX_LISTED_SELECTED = 3


@dataclass(frozen=True)
class Selection:
    """The tensors of a file to load; by default all of them under their own names.

    >>> chosen = Selection(prefix="module.", rename=(("^fc", "head"),), skip=("^aux",))
    >>> chosen.rename_names(["module.fc.bias", "module.aux.bias", "epoch"], "weights.pt")
    {'head.bias': 'module.fc.bias'}
    """

    prefix: str = ""
    """Load only names that begin with this text, and remove it from them."""
    rename: tuple[tuple[str, str], ...] = ()
    """Regular expressions and their replacements, applied in order with `re.sub`, after the prefix."""
    only: tuple[str, ...] = ()
    """Regular expressions; load only the renamed names in which one is found. Empty: all names."""
    skip: tuple[str, ...] = ()
    """Regular expressions; do not load the renamed names in which one is found."""

    def includes(self, name: str) -> bool:
        """Return True if `only` and `skip` permit the renamed *name*."""
        wanted = not self.only or any(re.search(pattern, name) for pattern in self.only)
        return wanted and not any(re.search(pattern, name) for pattern in self.skip)

    def rename_names(self, names: Collection[str], source: str) -> dict[str, str]:
        """Return the selected *names* of the file *source*, by their names in the model.

        Raises `RecordError` if two names become the same, or if no name begins with the prefix.
        """
        selected: dict[str, str] = {}
        for name in names:
            renamed = self._rename(name.removeprefix(self.prefix), source)
            if not name.startswith(self.prefix) or not self.includes(renamed):
                continue
            if renamed in selected:
                raise RecordError(
                    f"{source}: {selected[renamed]!r} and {name!r} are both renamed to {renamed!r}. "
                    "Correct the patterns in rename"
                )
            selected[renamed] = name
        if not any(name.startswith(self.prefix) for name in names):
            found = join_names(map(repr, names), MAX_LISTED_SELECTED) or "none"
            raise RecordError(
                f"{source}: no name begins with the prefix {self.prefix!r}; found {found}. Correct prefix"
            )
        return selected

    def _rename(self, name: str, source: str) -> str:
        for pattern, replacement in self.rename:
            try:
                name = re.sub(pattern, replacement, name)
            except (re.error, IndexError) as error:
                raise RecordError(
                    f"{source}: cannot rename {name!r} with {pattern!r} to {replacement!r}: {error}"
                ) from error
        return name


ALL_TENSORS = Selection()
"""Every tensor under its own name."""


MAX_LISTED_NAMES = 20
"""The largest number of names that a message lists of each kind."""


@dataclass
class LoadResult:
    """The tensors of a record that fit a module, and the names of those that do not."""

    state: dict[str, Tensor] = field(default_factory=dict)
    """Tensors under PyTorch's names, with PyTorch's axes."""
    missing: list[str] = field(default_factory=list)
    """Paths that the record lacks."""
    unexpected: list[str] = field(default_factory=list)
    """Paths of tensors that the module lacks."""
    mismatched: list[str] = field(default_factory=list)
    """Paths of tensors with another shape or kind of dtype, each with what was found and what is expected."""
    skipped: list[str] = field(default_factory=list)
    """Names in the record that the selection leaves out."""

    @property
    def fits(self) -> bool:
        """Return whether each tensor of the record has its counterpart in the module, and the reverse."""
        return not (self.missing or self.unexpected or self.mismatched)


def state_of(item: Tree, skeleton: Tree, source: str) -> LoadResult:
    """Return the ``state_dict`` that the record *item* holds, by its *skeleton*, without the module.

    Raises:
        RecordError: If the parts of a tensor cannot be joined. The message names *source*.
    """
    return _read(item, skeleton, source, {})


def load_into(
    module: nn.Module,
    item: Tree,
    *,
    strict: bool = True,
    source: str = "the record",
    layout: Layout | None = None,
    selection: Selection = ALL_TENSORS,
) -> LoadResult:
    """Load the tensors of *item* into *module*, converted to its dtypes and devices.

    Args:
        module: The module to load into.
        item: A Burn record, or a tree of bare tensors under PyTorch's names.
        strict: True: load everything or raise. False: load what fits.
        source: The name of the record in messages. Default: ``the record``.
        layout: Whose names and axes *item* has. Default: those that its file stated when `read_item` read
            it; otherwise infer them from names and shapes.
        selection: The tensors to load and their new names; a parameter that it leaves out may be missing.
            Default: all tensors under their own names.

    Returns:
        The loaded tensors, and the names that did not fit.

    Raises:
        RecordError: If *strict* and a tensor does not fit, or if the layout is ambiguous; *module* is then
            unchanged.
    """
    separate_elements(module)
    current = module.state_dict()
    tree = skeleton_of(module)
    layout = layout or ("torch" if isinstance(item, OfTorch) else None)
    is_ours = has_derived_ids(item)
    item, skipped = _select(to_raw_tree(item), selection, source)
    layout = layout or _layout(item, tree, current, source)
    read = _read(item, tree, source, current) if layout == "burn" else _read_names(item, tree, current)
    read.missing = [name for name in read.missing if selection.includes(name)]
    read.skipped = skipped
    if strict and not read.fits:
        raise RecordError(_complaint(read, module, source))
    if layout == "burn" and not is_ours:
        _warn_of_square_layers(module, read, tree, source)
    target = copy(current)  # with the versions of torch's own modules, an attribute
    target.update(read.state)
    module.load_state_dict(target)
    return read


def separate_elements(module: nn.Module) -> None:
    """Give each element memory of its own in the buffers of *module* that `expand` made.

    torch cannot write to such a buffer, as a resume, an average or a broadcast does. The values are the same.
    """
    copies: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for name, buffer in part._buffers.items():  # noqa: SLF001  a name may hold dots
            if buffer is not None and _shares_elements(buffer):
                part._buffers[name] = copies.setdefault(buffer, buffer.contiguous())  # noqa: SLF001


def _shares_elements(tensor: Tensor) -> bool:
    if is_lazy(tensor) or tensor.layout != torch.strided:
        return False
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _warn_of_square_layers(module: nn.Module, read: LoadResult, tree: Tree, source: str) -> None:
    """Warn of the Linear layers whose axes Burn's record does not state; attention has one layout in Burn."""

    def is_square(slot: Slot) -> bool:
        layer = module.get_submodule(slot.name.rpartition(".")[0])
        if not isinstance(layer, nn.Linear) or isinstance(layer, NonDynamicallyQuantizableLinear):
            return False
        return layer.in_features == layer.out_features > 1

    turned = (slot.name for _, slot in slots(tree) if slot.transposed and is_square(slot))
    if names := sorted({*turned} & read.state.keys()):
        log.warning(
            "%s does not state the axes of %s, read as Burn's default, [in, out]. If the layer has "
            "LinearLayout::Col, define burn_record with 'weight' instead of 'weight.T'",
            source,
            join_names(names, MAX_LISTED_NAMES),
        )


def _select(item: Tree, selection: Selection, source: str) -> tuple[Tree, list[str]]:
    """Return the selected tensors of *item* under their new names, and the names of the others."""
    if selection == ALL_TENSORS:
        return item, []
    leaves = {name: leaf for name, leaf in flatten(item) if _tensor_in(leaf)}
    names = selection.rename_names(leaves, source)
    used = set(names.values())
    skipped = [name for name in leaves if name not in used]
    return unflatten({new: leaves[old] for new, old in names.items()}, source), skipped


class _Reading:
    """A walk along a skeleton that collects the tensors of a record by their names in PyTorch."""

    def __init__(self, current: Mapping[str, Any]) -> None:
        self.parts: dict[str, list[tuple[Slot, RawTensor]]] = {}
        self.incomplete: set[str] = set()
        self.report = LoadResult()
        self._own = current

    def walk(self, node: Tree, frame: Tree, path: str) -> None:
        """Collect the tensors of *node*, which is at the position of *frame* in the skeleton."""
        tensor = _tensor_in(node)
        frame = frame.value if isinstance(frame, Some) else frame
        names = list(node) if isinstance(node, dict) and tensor is None else []
        if isinstance(frame, Variant) and len(names) == 1 and names != [frame.name]:
            self.report.mismatched.append(f"{path} is {names[0]}, expected {frame.name}")
            return
        frame = unwrap(frame)
        if isinstance(frame, Slot) and tensor is not None:
            self._fill(tensor, frame, path)
        elif isinstance(frame, Slot):
            self.report.missing.append(path)
            self.incomplete.add(frame.name)
            self._surplus(node, path)
        elif isinstance(frame, Constant) and tensor is not None:
            self._check(tensor, frame, path)
        elif isinstance(frame, dict | list | tuple):
            self._walk_fields(node, frame, path)
        else:
            self._surplus(node, path)

    def _walk_fields(self, node: Tree, frame: Tree, path: str) -> None:
        fields = dict(fields_of(node)) if isinstance(node, dict | list | tuple) else {}
        for key, inner in fields_of(frame):
            self.walk(fields.pop(key, None), inner, _join(path, key))
        for key, rest in fields.items():
            self._surplus(rest, _join(path, key))
        if isinstance(node, RawTensor):
            self._surplus(node, path)

    def _fill(self, tensor: RawTensor, slot: Slot, path: str) -> None:
        if wrong := _mismatch(slot, tensor, self._own.get(slot.name)):
            self.report.mismatched.append(f"{path} {wrong}")
            self.incomplete.add(slot.name)
        else:
            self.parts.setdefault(slot.name, []).append((slot, tensor))

    def _check(self, tensor: RawTensor, constant: Constant, path: str) -> None:
        """Report *tensor*, in the place of *constant*, if its content differs."""
        if tensor.shape != constant.shape:
            expected = list(constant.shape)
            self.report.mismatched.append(
                f"{path} is {tensor.dtype} {list(tensor.shape)}, expected {expected}"
            )
        elif not bool((from_raw(tensor) == constant.value).all()):
            self.report.unexpected.append(path)

    def _surplus(self, node: Tree, path: str) -> None:
        for name, leaf in iter_leaves(node, path):
            if isinstance(leaf, RawTensor):
                self.report.unexpected.append(name.removesuffix(".param"))


def _read(item: Tree, skeleton: Tree, source: str, current: Mapping[str, Any]) -> LoadResult:
    reading = _Reading(current)
    reading.walk(to_raw_tree(item), skeleton, "")
    for name, parts in reading.parts.items():
        if name in reading.incomplete:
            continue
        try:
            reading.report.state[name] = join_slots(parts)
        except (RuntimeError, RecordError) as error:
            raise RecordError(f"{source}: cannot join the parts of {name}: {error}") from error
    return reading.report


def _read_names(item: Tree, skeleton: Tree, current: Mapping[str, Any]) -> LoadResult:
    """Read *item* as tensors under PyTorch's names; of tied tensors, one name suffices."""
    report = LoadResult()
    tensors = {path: leaf for path, leaf in iter_leaves(item) if isinstance(leaf, RawTensor)}
    twins = _twins(current)
    for name in {slot.name: None for _, slot in slots(skeleton)}:
        if name not in tensors and not any(twin in tensors for twin in twins.get(name, ())):
            report.missing.append(name)
    for name, raw in tensors.items():
        if not isinstance(current.get(name), Tensor):
            report.unexpected.append(name)
            continue
        wrong = _mismatch(_whole(name), raw, current[name])
        if wrong:
            report.mismatched.append(f"{name} {wrong}")
        else:
            report.state[name] = from_raw(raw)
    for name in list(report.state):
        report.state.update({twin: report.state[name] for twin in twins.get(name, ()) if twin not in tensors})
    return report


def _twins(current: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the other names of each tensor that has several, for example of tied weights."""
    places: dict[tuple[Any, ...], list[str]] = {}
    for name, entry in current.items():
        if isinstance(entry, Tensor) and entry.numel():
            places.setdefault((entry.data_ptr(), entry.shape, entry.stride()), []).append(name)
    return {name: [twin for twin in names if twin != name] for names in places.values() for name in names}


def _mismatch(slot: Slot, tensor: RawTensor, current: Tensor | None) -> str | None:
    """Return what *tensor* is and what *current*, that of the module, expects; None if it fits."""
    if current is None:
        return None
    shape, expected = list(tensor.shape), list(view_slot(slot, current).shape)
    dtype = DTYPE_NAMES.get(current.dtype, str(current.dtype))
    if shape == expected and _kind(tensor.dtype) == _kind(dtype):
        return None
    is_turned = slot.transposed and shape == expected[::-1]
    hint = ": for LinearLayout::Col, name 'weight' in a burn_record, not 'weight.T'" if is_turned else ""
    return f"is {tensor.dtype} {shape}, expected {dtype} {expected}{hint}"


def _kind(dtype: str) -> str:
    if dtype in FLOATS:
        return "float"
    return "bool" if dtype == "Bool" else "int"


def _layout(item: Tree, tree: Tree, current: Mapping[str, Any], source: str) -> Layout:
    """Return whose names and axes *item* has: those of a Burn record, or PyTorch's.

    Names of Burn do not prove its axes: its adapter for PyTorch writes bare tensors with PyTorch's.
    """
    tensors = {path: leaf for path, leaf in iter_leaves(item) if isinstance(leaf, RawTensor)}
    ours = dict(slots(tree))
    turned = [name for name in tensors if name in ours and ours[name].transposed]
    named_torch, named_burn = (len(tensors.keys() & names.keys()) for names in (current, ours))
    torchs = sum(_fits(_whole(name), raw, current) for name, raw in tensors.items())
    burns = sum(_fits(ours[name], raw, current) for name, raw in tensors.items() if name in ours)
    if named_torch > named_burn:
        return "torch"
    if named_burn > named_torch:
        are_square = turned and all(len(set(tensors[name].shape)) == 1 for name in turned)
        if not are_square:
            return "burn"
    elif torchs != burns or not (turned and torchs):
        return "torch" if torchs > burns or (torchs and torchs == burns) else "burn"
    raise RecordError(
        f"{source} could have Burn's axes or PyTorch's: {join_names(turned, MAX_LISTED_NAMES)} fit both. "
        "Set layout to 'burn' or 'torch' (build_learner.checkpoint.layout in params.yaml)"
    )


def _fits(slot: Slot, tensor: RawTensor, current: Mapping[str, Any]) -> bool:
    return isinstance(current.get(slot.name), Tensor) and _mismatch(slot, tensor, current[slot.name]) is None


def _tensor_in(node: Tree) -> RawTensor | None:
    """Return the tensor that *node* is, as such or as a parameter; None if it is not one."""
    if isinstance(node, dict) and node.keys() <= {"id", "param"}:
        node = node.get("param")
    return node if isinstance(node, RawTensor) else None


def _whole(name: str) -> Slot:
    """Return the slot of PyTorch's tensor *name* as it is."""
    return Slot(name, None, None, transposed=False, id="")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _complaint(read: LoadResult, module: nn.Module, source: str) -> str:
    kinds = {"missing": read.missing, "unexpected": read.unexpected, "of another shape": read.mismatched}
    lines = [f"  {kind}: {join_names(names, MAX_LISTED_NAMES)}" for kind, names in kinds.items() if names]
    return "\n".join(
        [f"{source} does not fit {type(module).__name__}:", *lines, "set strict=False to load what fits"]
    )
