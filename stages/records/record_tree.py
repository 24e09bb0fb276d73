"""What a file of state holds, before any format and without torch: a tree with tensors as leaves.

A node is a dict (a struct, fields in declaration order), a list, a tuple, text, a number, bytes, None, or
a `RawTensor`. Formats with names need no more. Bincode has no names, so a tree that is written as bincode,
or is the example by which bincode is read, says more: a tuple is an array whose length the type knows, a
list a vector with its length; `Map` is a map with its length; `Some` an option that holds something (None
is one that does not, or a constant: both are one zero byte); `Variant` one case of an enum; `Signed` an
integer with a sign.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stages.records.dtypes import ITEM_SIZES

Tree = Any
"""A node as the module's docstring says, nested."""


@dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor as a file has it: little-endian, row-major. Its bytes come in pieces, when asked for."""

    dtype: str
    """A key of `ITEM_SIZES`."""
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[memoryview]]
    """The bytes from first to last; every call starts anew. Joined they are `nbytes` long."""

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...], data: Any) -> "RawTensor":
        """The tensor over *data*, a buffer of bytes that is not copied."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")  # a shape with a 0 in it cannot be cast
        return cls(dtype, shape, lambda: (view,))

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * ITEM_SIZES[self.dtype]

    def data(self) -> memoryview:
        """All bytes in one buffer; copied only where there is more than one piece."""
        pieces = list(self.pieces())
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class Map(dict[str, Tree]):
    """A map of any number of keys, where a plain dict is a struct."""


class Signed(int):
    """An integer with a sign (``i32``, ``i64``), where a plain int is a ``usize``."""


@dataclass(frozen=True)
class Some:
    """An option that holds *value*. Formats with names write the value alone."""

    value: Tree


@dataclass(frozen=True)
class Variant:
    """The case *name* of an enum, its *index* from 0, and what it holds. With names: ``{name: value}``."""

    name: str
    index: int
    value: Tree


@dataclass(frozen=True)
class Metadata:
    """What a record of Burn says about itself: five texts, which no reader checks."""

    float: str
    int: str
    format: str
    version: str
    settings: str


@dataclass(frozen=True)
class Record:
    """A file's content."""

    item: Tree
    metadata: Metadata | None = None
    """None where the format has none (burnpack, safetensors of another origin)."""
    extra: dict[str, str] | None = None
    """Text that the format carries beside (the metadata map of burnpack and safetensors)."""


def strip_type_hints(node: Tree) -> Tree:
    """*node* without what only bincode needs: `Some`, `Variant`, `Map`, `Signed` and tuples are gone."""
    if isinstance(node, Some):
        return strip_type_hints(node.value)
    if isinstance(node, Variant):
        return {node.name: strip_type_hints(node.value)}
    if isinstance(node, dict):
        return {key: strip_type_hints(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [strip_type_hints(value) for value in node]
    if isinstance(node, Signed):
        return int(node)
    return node


def iter_leaves(node: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its dotted path, in order; the elements of arrays are named by their index."""
    node = node.value if isinstance(node, Some) else node
    if isinstance(node, Variant):
        node = {node.name: node.value}
    if isinstance(node, dict | list | tuple):
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in pairs:
            yield from iter_leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node
