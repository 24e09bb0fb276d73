"""The contents of a record as names, shapes and dtypes, without the values of its tensors."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stages.contracts.text import number
from stages.records.dotted_names import is_parameter
from stages.records.record_tree import RawTensor, Tree, fields_of, unwrap

MAX_VALUES = 8
"""A longer list of numbers or texts is described by its length."""
MAX_CHARACTERS = 60
"""The largest number of characters of a text that a description shows."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One name of a record, with its value or its children."""

    name: str
    """The key in a map, or the index in a list."""
    path: str
    """The dotted path from the root."""
    tensor: RawTensor | None = None
    value: Any = None
    """A number, a text or a list of them; None for a constant."""
    id: str | None = None
    """The id of a parameter, whose ``id`` and ``param`` are one entry."""
    children: tuple["Entry", ...] = ()
    branch: bool = False
    """Whether the entry is a map or a list, possibly an empty one."""

    @property
    def constant(self) -> bool:
        """Return whether the entry is nil or holds only nil, so that a reader does not need it."""
        if self.branch:
            return bool(self.children) and all(child.constant for child in self.children)
        return self.tensor is None and self.value is None

    def walk(self) -> Iterator["Entry"]:
        """Yield the entry and every entry below it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Totals:
    """The size of a record."""

    tensors: int
    parameters: int
    """The elements of the tensors with a parameter id; of all tensors if the format has no ids."""
    nbytes: int
    """The bytes of all tensors."""


def list_entries(node: Tree, name: str = "", path: str = "") -> Entry:
    """Return *node* as an entry with the name *name* and the path *path*."""
    node = unwrap(node)
    if isinstance(node, RawTensor):
        return Entry(name, path, tensor=node)
    if is_parameter(node):
        return Entry(name, path, tensor=node["param"], id=node["id"])
    is_list = isinstance(node, list | tuple) and bool(node)
    if is_list and all(isinstance(value, bool | int | float | str) for value in node):
        return Entry(name, path, value=list(node))
    if isinstance(node, dict | list | tuple):
        inner = f"{path}." if path else ""
        children = tuple(list_entries(value, str(key), f"{inner}{key}") for key, value in fields_of(node))
        return Entry(name, path, children=children, branch=True)
    return Entry(name, path, value=node)


def totals(entry: Entry) -> Totals:
    """Return the sums over all tensors below *entry*."""
    every = [one.tensor for one in entry.walk() if one.tensor is not None]
    named = [one.tensor for one in entry.walk() if one.tensor is not None and one.id is not None]
    return Totals(
        tensors=len(every),
        parameters=sum(tensor.numel for tensor in named or every),
        nbytes=sum(tensor.nbytes for tensor in every),
    )


def describe(entry: Entry) -> str:
    """Describe *entry*: ``F32 [784, 512]`` for a tensor, a short text for a value, "" for a branch."""
    if entry.tensor is not None:
        return f"{entry.tensor.dtype} {list(entry.tensor.shape)}"
    if entry.branch:
        return "" if entry.children else "empty"
    if isinstance(entry.value, list) and len(entry.value) > MAX_VALUES:
        return f"{len(entry.value)} values"
    return _short(entry.value)


def to_rows(entry: Entry, *, constants: bool) -> list[Json]:
    """Return a row for each leaf below *entry*, in order; leaves that are nil only with *constants*."""
    return [_row(one) for one in entry.walk() if not one.branch and (constants or not one.constant)]


def escape(text: str) -> str:
    """Return *text* with control characters escaped, because files may come from untrusted sources."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _row(entry: Entry) -> Json:
    if entry.tensor is None:
        return {"path": entry.path, "value": _json_value(entry.value)}
    tensor = entry.tensor
    row: Json = {
        "path": entry.path,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
    }
    return row if entry.id is None else row | {"id": entry.id}


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return number(value)
    return f"{len(value)} bytes" if isinstance(value, bytes) else value


def _short(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        cut = (
            value if len(value) <= MAX_CHARACTERS else f"{value[:MAX_CHARACTERS]}… ({len(value)} characters)"
        )
        return f'"{escape(cut)}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return str(value)
