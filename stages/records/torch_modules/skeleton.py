"""Skeletons: records with slots in the place of tensors, which map Burn's fields to PyTorch's names.

A skeleton depends on the structure of the module only and is plain data. Stored with a record, it allows to
read the record under PyTorch's names without the module.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.contracts.errors import RecordError
from stages.records.record_tree import Map, RawTensor, Signed, Some, Tree, Variant, iter_leaves, map_leaves

MAX_DEPTH = 128
"""The largest number of levels of a stored skeleton."""


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in Burn's record: rows of one of PyTorch's tensors, possibly transposed."""

    name: str
    """The name in the module's ``state_dict``."""
    start: int | None
    stop: int | None
    """The rows of dimension 0 are *start* to *stop*, exclusive; both are None for all rows."""
    transposed: bool
    """Whether Burn stores the transpose, which only a matrix has."""
    id: str
    """The id of Burn's parameter."""


@dataclass(frozen=True)
class Rows:
    """In a layout, rows *start* to *stop* of the tensor *name*, which Burn splits into several tensors."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Constant:
    """A parameter that Burn's module has and PyTorch's lacks: each element is *value*.

    In a layout *id* is empty; in a skeleton it is the id of Burn's parameter.
    """

    value: float
    shape: tuple[int, ...]
    id: str = ""

    def parameter(self) -> Tree:
        """Return the record of the parameter."""
        return {"id": self.id, "param": RawTensor("F32", self.shape, self._pieces)}

    def _pieces(self) -> tuple[memoryview]:
        return (np.full(self.shape, self.value, "<f4").reshape(-1).view(np.uint8).data,)


LEAF_EXAMPLES: dict[str, Any] = {
    "tensor": RawTensor.of("F32", (0,), b""),
    "text": "",
    "signed": Signed(),
    "bool": False,
    "int": 0,
    "float": 0.0,
}
"""The kinds of leaves other than slots, by their stored names, with an example of each."""


def slots(skeleton: Tree) -> Iterator[tuple[str, Slot]]:
    """Return an iterator over the slots, each with its path in the record, in order."""
    return ((path, leaf) for path, leaf in iter_leaves(skeleton) if isinstance(leaf, Slot))


def fill_slots(skeleton: Tree, fill: Callable[[Slot], Tree]) -> Tree:
    """Return *skeleton* with the result of *fill* in the place of each slot, and constants as parameters."""

    def leaf(node: Tree) -> Tree:
        if isinstance(node, Slot):
            return fill(node)
        return node.parameter() if isinstance(node, Constant) else node

    return map_leaves(skeleton, leaf)


def to_plain(skeleton: Tree) -> Any:
    """Return *skeleton* as lists, dicts, text and integers, which any format can store.

    Also accepts a record: of its tensors, texts and numbers only the kind is kept, so the result is an
    example of such a record.

    Raises:
        RecordError: If a leaf has a type that skeletons do not support.
    """
    match skeleton:
        case Slot() | Constant():
            return _plain_parameter(skeleton)
        case Some():
            return ["some", to_plain(skeleton.value)]
        case Variant():
            return ["variant", skeleton.name, skeleton.index, to_plain(skeleton.value)]
        case dict():
            kind = "map" if isinstance(skeleton, Map) else "struct"
            return [kind, {key: to_plain(value) for key, value in skeleton.items()}]
        case list() | tuple():
            kind = "list" if isinstance(skeleton, list) else "tuple"
            return [kind, [to_plain(value) for value in skeleton]]
        case None:
            return None
        case object(dtype=_, shape=_):  # raw, or torch's
            return ["tensor"]
    for kind, example in LEAF_EXAMPLES.items():
        if type(skeleton) is type(example):
            return [kind]
    raise RecordError(f"a skeleton cannot hold a {type(skeleton).__name__}, found {skeleton!r}")


def from_plain(stored: Any, source: str, depth: int = 0) -> Tree:
    """Return the skeleton from which `to_plain` made *stored*.

    Raises:
        RecordError: If *stored* is not such data. The message names *source*.
    """
    if depth > MAX_DEPTH:
        raise RecordError(f"{source}: the skeleton has more than {MAX_DEPTH} levels")

    def inner(value: Any) -> Tree:
        return from_plain(value, source, depth + 1)

    match stored:
        case None:
            return None
        case ["slot" | "constant", *_]:
            return _parameter(stored, source)
        case ["some", value]:
            return Some(inner(value))
        case [str(kind)] if kind in LEAF_EXAMPLES:
            return LEAF_EXAMPLES[kind]
        case ["variant", str(name), int(index), value]:
            return Variant(name, index, inner(value))
        case ["map" | "struct" as kind, dict(fields)]:
            entries = {str(key): inner(value) for key, value in fields.items()}
            return Map(entries) if kind == "map" else entries
        case ["list" | "tuple" as kind, list(values)]:
            return [inner(value) for value in values] if kind == "list" else tuple(map(inner, values))
    raise _invalid(stored, source)


def _plain_parameter(skeleton: Slot | Constant) -> Any:
    if isinstance(skeleton, Constant):
        return ["constant", skeleton.value, list(skeleton.shape), skeleton.id]
    return [
        "slot",
        skeleton.name,
        skeleton.start,
        skeleton.stop,
        int(skeleton.transposed),
        skeleton.id,
    ]


def _parameter(stored: Any, source: str) -> Slot | Constant:
    match stored:
        case ["slot", str(name), int() | None as start, int() | None as stop, 0 | 1 as transposed, str(key)]:
            _check_rows(start, stop, source)
            return Slot(name, start, stop, bool(transposed), key)
        case ["constant", float(value), list(shape), str(key)] if _are_sizes(shape):
            return Constant(value, tuple(shape), key)
    raise _invalid(stored, source)


def _invalid(stored: Any, source: str) -> RecordError:
    return RecordError(f"{source}: not a valid part of a skeleton: {str(stored)[:80]!r}")


def _are_sizes(shape: list[Any]) -> bool:
    return all(type(size) is int and size >= 0 for size in shape)


def _check_rows(start: int | None, stop: int | None, source: str) -> None:
    all_rows = start is None and stop is None
    if not all_rows and not (start is not None and stop is not None and 0 <= start <= stop):
        raise RecordError(f"{source}: a slot must have rows in ascending order, found {start} to {stop}")
