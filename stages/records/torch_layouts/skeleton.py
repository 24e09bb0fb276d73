"""Skeletons: records with slots in the place of tensors, which map Burn's fields to PyTorch's names.

A skeleton depends on the structure of the module only and is plain data. Stored with a record, it allows to
read the record under PyTorch's names without the module.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stages.contracts.errors import RecordError
from stages.records.record_tree import Map, RawTensor, Signed, Some, Tree, Variant, iter_leaves, map_leaves
from stages.records.tensor_data import are_sizes

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


CONTAINERS: dict[str, Any] = {"map": Map, "struct": dict, "list": list, "tuple": tuple}
"""The kinds of containers, by their stored names."""
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
        case Constant():
            return ["constant", skeleton.value, list(skeleton.shape), skeleton.id]
        case Slot(name, start, stop, transposed, key):
            return ["slot", name, start, stop, int(transposed), key]
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
    return _plain_leaf(skeleton)


def _plain_leaf(node: Any) -> list[str] | None:
    match node:
        case None:
            return None
        case object(dtype=_):  # raw, or torch's
            return ["tensor"]
    for kind, example in LEAF_EXAMPLES.items():
        if type(node) is type(example):
            return [kind]
    raise RecordError(f"a skeleton cannot hold a {type(node).__name__}, found {node!r}")


def from_plain(stored: Any, source: str, depth: int = 0) -> Tree:
    """Return the skeleton from which `to_plain` made *stored*.

    Raises:
        RecordError: If *stored* is not such data. The message names *source*.
    """
    if depth > MAX_DEPTH:
        raise RecordError(f"{source}: the skeleton has more than {MAX_DEPTH} levels")

    inner = partial(from_plain, source=source, depth=depth + 1)
    match stored:
        case None:
            return None
        case ["constant", float(value), list(shape), str(key)] if are_sizes(shape):
            return Constant(value, tuple(shape), key)
        case [
            "slot",
            str(name),
            int() | None as start,
            int() | None as stop,
            0 | 1 as transposed,
            str(key),
        ] if _are_rows(start, stop):
            return Slot(name, start, stop, bool(transposed), key)
        case ["some", value]:
            return Some(inner(value))
        case [str(kind)] if kind in LEAF_EXAMPLES:
            return LEAF_EXAMPLES[kind]
        case ["variant", str(name), int(index), value]:
            return Variant(name, index, inner(value))
        case ["map" | "struct" as kind, dict(fields)]:
            return CONTAINERS[kind]((str(key), inner(value)) for key, value in fields.items())
        case ["list" | "tuple" as kind, list(values)]:
            return CONTAINERS[kind](map(inner, values))
    raise RecordError(f"{source}: not a valid part of a skeleton: {str(stored)[:80]!r}")


def _are_rows(start: int | None, stop: int | None) -> bool:
    if start is None or stop is None:
        return start is stop
    return 0 <= start <= stop
