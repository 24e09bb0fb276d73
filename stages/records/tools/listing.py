"""What a record holds, for people and programs: names, shapes and dtypes; no tensor's bytes are needed."""

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stages.contracts.text import number
from stages.records.record_tree import RawTensor, Some, Tree, Variant

SHOWN_VALUES = 8
"""A longer list of numbers or texts is told by its length."""
SHOWN_TEXT = 60
"""Characters of a text that are shown."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One name of a record, with all that stands under it."""

    name: str
    """In what holds it; an index in a list."""
    path: str
    """From the top, dotted."""
    tensor: RawTensor | None = None
    value: Any = None
    """A number, a text, a short list of them; None for a constant."""
    id: str | None = None
    """Of a parameter: its ``id`` and its ``param`` are one entry."""
    children: tuple["Entry", ...] = ()
    branch: bool = False
    """Whether it is a map or a list, maybe an empty one."""

    @property
    def constant(self) -> bool:
        """Whether it holds nothing that a reader needs: nil, or only such."""
        if self.branch:
            return bool(self.children) and all(child.constant for child in self.children)
        return self.tensor is None and self.value is None

    def all(self) -> Iterator["Entry"]:
        """Itself and every entry below it, in order."""
        yield self
        for child in self.children:
            yield from child.all()


@dataclass(frozen=True)
class Totals:
    """How much a record holds."""

    tensors: int
    elements: int
    parameters: int
    """Elements of tensors that have a parameter's id; of all tensors in a form without ids."""
    nbytes: int
    """Of all tensors."""


def list_entries(node: Tree, name: str = "", path: str = "") -> Entry:
    """The entry of *node*, called *name* and standing at *path*."""
    node = node.value if isinstance(node, Some) else node
    if isinstance(node, Variant):
        node = {node.name: node.value}
    if isinstance(node, RawTensor):
        return Entry(name, path, tensor=node)
    if isinstance(node, dict) and node.keys() == {"id", "param"} and isinstance(node["param"], RawTensor):
        return Entry(name, path, tensor=node["param"], id=str(node["id"]))
    if isinstance(node, list | tuple) and _is_row(node):
        return Entry(name, path, value=list(node))
    if isinstance(node, dict | list | tuple):
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        inner = f"{path}." if path else ""
        children = tuple(list_entries(value, str(key), f"{inner}{key}") for key, value in pairs)
        return Entry(name, path, children=children, branch=True)
    return Entry(name, path, value=node)


def totals(entry: Entry) -> Totals:
    """Sums over all tensors below *entry*."""
    found = [(one, one.tensor) for one in entry.all() if one.tensor is not None]
    named = [tensor for one, tensor in found if one.id is not None]
    elements = sum(tensor.numel for _, tensor in found)
    return Totals(
        tensors=len(found),
        elements=elements,
        parameters=sum(tensor.numel for tensor in named) if named else elements,
        nbytes=sum(tensor.nbytes for _, tensor in found),
    )


def describe(entry: Entry) -> str:
    """What stands at *entry*, in a few words: ``F32 [784, 512]``, a value, nothing for a branch."""
    if entry.tensor is not None:
        return f"{entry.tensor.dtype} {list(entry.tensor.shape)}"
    if entry.branch:
        return "" if entry.children else "empty"
    if isinstance(entry.value, list) and len(entry.value) > SHOWN_VALUES:
        return f"{len(entry.value)} values"
    return _short(entry.value)


def to_rows(entry: Entry, *, constants: bool) -> list[Json]:
    """A row for each leaf below *entry*, in order; those that are nil only with *constants*."""
    return [_row(one) for one in entry.all() if not one.branch and (constants or not one.constant)]


def escape(text: str) -> str:
    """*text* with what would move a cursor or hide a name shown as an escape: files come from strangers."""
    return "".join(
        char if char == " " or unicodedata.category(char)[0] not in "CZ" else ascii(char)[1:-1]
        for char in text
    )


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


def _is_row(node: list[Tree] | tuple[Tree, ...]) -> bool:
    """Whether *node* is a list of numbers or texts, which is one value."""
    return bool(node) and all(isinstance(value, bool | int | float | str) for value in node)


def _short(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        cut = value if len(value) <= SHOWN_TEXT else f"{value[:SHOWN_TEXT]}… ({len(value)} characters)"
        return f'"{escape(cut)}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return str(value)
