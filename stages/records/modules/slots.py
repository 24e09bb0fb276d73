"""Where each of a module's tensors stands in its Burn record: a *skeleton* is a record with slots.

It depends on the module's structure only and is plain data, so it can be kept beside a record, which then
turns into PyTorch's names with no module at hand.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stages.contracts.errors import RecordError
from stages.records.tree import Map, RawTensor, Signed, Some, Tree, Variant, leaves

DEPTH = 128
"""Levels that a stored skeleton may have."""


@dataclass(frozen=True)
class Slot:
    """A tensor of Burn's record: rows *start* to *stop* of one tensor of PyTorch's, maybe transposed."""

    name: str
    """In the module's ``state_dict``."""
    start: int | None
    stop: int | None
    """None, both, for all rows (of dimension 0)."""
    transposed: bool
    """Whether Burn has it as the transpose, which only a matrix can be."""
    id: str
    """Of Burn's parameter."""


@dataclass(frozen=True)
class Rows:
    """In a layout: rows *start* to *stop* of the tensor *name*, where PyTorch has in one what Burn splits."""

    name: str
    start: int
    stop: int


LEAVES: dict[str, Any] = {
    "tensor": RawTensor.of("F32", (0,), b""),
    "text": "",
    "signed": Signed(),
    "bool": False,
    "int": 0,
    "float": 0.0,
}
"""What a record has beside slots, by the names they are kept under, with an example of each."""


def slots(skeleton: Tree) -> Iterator[tuple[str, Slot]]:
    """Every slot with its path in the record, in order."""
    return ((path, leaf) for path, leaf in leaves(skeleton) if isinstance(leaf, Slot))


def filled(skeleton: Tree, fill: Callable[[Slot], Tree]) -> Tree:
    """*skeleton* with what *fill* gives for each slot in its place."""
    if isinstance(skeleton, Slot):
        return fill(skeleton)
    if isinstance(skeleton, Some):
        return Some(filled(skeleton.value, fill))
    if isinstance(skeleton, Variant):
        return Variant(skeleton.name, skeleton.index, filled(skeleton.value, fill))
    if isinstance(skeleton, dict):
        return type(skeleton)((key, filled(value, fill)) for key, value in skeleton.items())
    if isinstance(skeleton, list | tuple):
        return type(skeleton)(filled(value, fill) for value in skeleton)
    return skeleton


def to_plain(skeleton: Tree) -> Any:
    """*skeleton* as lists, dicts, text and whole numbers, as any format can keep it.

    A record works too: of its tensors, texts and numbers only the kind is kept, which makes an example of it.
    """
    match skeleton:
        case Slot():
            rows = [skeleton.start, skeleton.stop]
            return ["slot", skeleton.name, *rows, int(skeleton.transposed), skeleton.id]
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
    for kind, example in LEAVES.items():
        if type(skeleton) is type(example):
            return [kind]
    raise RecordError(f"a skeleton has no {type(skeleton).__name__}: {skeleton!r}")


def from_plain(stored: Any, source: str, depth: int = 0) -> Tree:
    """The skeleton that `to_plain` gave *stored* of. Raises `RecordError`, which names *source*."""
    if depth > DEPTH:
        raise RecordError(f"{source}: the skeleton is over {DEPTH} levels deep")

    def inner(value: Any) -> Tree:
        return from_plain(value, source, depth + 1)

    match stored:
        case None:
            return None
        case ["slot", str(name), int() | None as start, int() | None as stop, 0 | 1 as transposed, str(key)]:
            _check_rows(start, stop, source)
            return Slot(name, start, stop, bool(transposed), key)
        case ["some", value]:
            return Some(inner(value))
        case [str(kind)] if kind in LEAVES:
            return LEAVES[kind]
        case ["variant", str(name), int(index), value]:
            return Variant(name, index, inner(value))
        case ["map" | "struct" as kind, dict(fields)]:
            made = {str(key): inner(value) for key, value in fields.items()}
            return Map(made) if kind == "map" else made
        case ["list" | "tuple" as kind, list(values)]:
            return [inner(value) for value in values] if kind == "list" else tuple(map(inner, values))
    raise RecordError(f"{source}: no part of a skeleton looks like {str(stored)[:80]!r}")


def _check_rows(start: int | None, stop: int | None, source: str) -> None:
    whole = start is None and stop is None
    if not whole and not (start is not None and stop is not None and 0 <= start <= stop):
        raise RecordError(f"{source}: a slot of rows {start} to {stop}, which are none")
