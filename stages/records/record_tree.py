"""The content of a record, independent of the file format and of torch: a tree with tensors as leaves.

A node is a dict (a struct, fields in declaration order), a list, a tuple, text, a number, bytes, None, or a
`RawTensor`. Formats with names need no more. Bincode stores no names and no types, so a tree that is written
as bincode, or that serves as the example for reading bincode, contains type hints: a tuple is an array whose
length the type determines, a list is a vector with its length, `Map` is a map with its length, `Some` is an
option with a value (None is an option without one, or a constant: both are one zero byte), `Variant` is one
case of an enum, and `Signed` is an integer with a sign. Element types have Burn's names.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

FLOATS = frozenset({"F64", "F32", "Flex32", "F16", "BF16"})
NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "Flex32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "Bool": "u1",
}
"""NumPy's name of each type. NumPy has no BF16, so it is represented by its bits."""
ITEM_SIZES = {name: int(numpy_name[-1]) for name, numpy_name in NUMPY.items()}
"""Bytes of one element. ``Flex32`` is stored as ``F32``; ``Bool`` is one byte, 0 or 1."""
RUST_TYPES = {name.lower(): name for name in NUMPY if name != "Flex32"}
"""The type of each name in Rust, by which Burn's metadata names it."""
INTEGERS = frozenset(name for name in NUMPY if name[0] in "IU")
BOOL_STORES = {"Native": 1, "U8": 1, "U32": 4}
"""How Burn since 0.21 stores a Bool, in the order of its enum, with the bytes of one element."""
MAX_DIMENSIONS = 32
"""Dimensions of a tensor in a file."""
MAX_ELEMENTS = 1 << 63
"""Bound on the number of elements of a tensor; the number must be smaller."""


Layout = Literal["burn", "torch"]
"""The framework whose names and axes a tree has: Burn's Linear has [in, out], PyTorch's [out, in]."""
TORCH_FORMAT = "pt"
"""The text ``format`` in the metadata of safetensors files of PyTorch."""
Tree = Any
"""A node as described in the module's docstring, nested."""


@dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor as stored in a file: little-endian, row-major, with its bytes produced on request."""

    dtype: str
    """A key of `ITEM_SIZES`."""
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[memoryview]]
    """Returns the bytes in order, `nbytes` in total; each call starts from the beginning."""

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...], data: Any) -> "RawTensor":
        """Return the tensor over *data*, a buffer of bytes, which is not copied."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")  # a shape with a 0 in it cannot be cast
        return cls(dtype, shape, lambda: (view,))

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of all elements."""
        return self.numel * ITEM_SIZES[self.dtype]

    def data(self) -> memoryview:
        """Return all bytes in one buffer, copied only if there are several pieces."""
        pieces = list(self.pieces())
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class Map(dict[str, Tree]):
    """A map with any number of keys; a plain dict is a struct."""


class OfTorch:
    """A mixin of trees of bare tensors whose file states that they have PyTorch's names and axes."""


class TorchMap(OfTorch, dict[str, Tree]):
    """Tensors of PyTorch by name."""


class TorchList(OfTorch, list[Tree]):
    """Tensors of PyTorch by number, as of an `nn.Sequential`."""


class Signed(int):
    """An integer with a sign (``i32``, ``i64``); a plain int is a ``usize``."""


@dataclass(frozen=True)
class Some:
    """An option with a value. Formats with names write the value alone."""

    value: Tree


@dataclass(frozen=True)
class Variant:
    """One case of an enum, with its name, its index from 0, and its value.

    Formats with names write ``{name: value}``.
    """

    name: str
    index: int
    value: Tree


@dataclass(frozen=True)
class ParameterState(Variant):
    """The state of a parameter in an optimizer's record, a `Variant`, with what only Burn 0.22 stores."""

    path: str = ""
    """The path of the parameter in the model's record."""
    is_of_group: bool = False
    """True if another optimizer than that of the record trains the parameter, which 0.21 does not support."""


@dataclass(frozen=True)
class Metadata:
    """The five texts with which a Burn record describes itself. No reader checks them."""

    float: str
    int: str
    format: str
    version: str
    settings: str


@dataclass(frozen=True)
class Record:
    """The content of a file."""

    item: Tree
    metadata: Metadata | None = None
    """None if the format has none (burnpack, safetensors of another origin)."""
    extra: dict[str, str] | None = None
    """Additional texts of the format (the metadata map of burnpack and safetensors)."""

    @property
    def layout(self) -> Layout | None:
        """The layout that a safetensors file states; None if it states none."""
        if self.metadata is not None:
            return "burn"
        return "torch" if (self.extra or {}).get("format") == TORCH_FORMAT else None


def strip_type_hints(node: Tree) -> Tree:
    """Return *node* with `Some`, `Variant`, `Map`, `Signed` and tuples replaced by plain values."""
    node = unwrap(node)
    if isinstance(node, dict):
        return {key: strip_type_hints(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [strip_type_hints(value) for value in node]
    return int(node) if isinstance(node, Signed) else node


def unwrap(node: Tree) -> Tree:
    """Return *node* as formats with names write it: the value of a `Some`, and a map for a `Variant`."""
    node = node.value if isinstance(node, Some) else node
    return {node.name: node.value} if isinstance(node, Variant) else node


def fields_of(node: Tree) -> Iterable[tuple[Any, Tree]]:
    """Return the keys and values of a dict, or the indices, as text, and elements of a list or a tuple."""
    if isinstance(node, dict):
        return node.items()
    return ((str(index), value) for index, value in enumerate(node))


def iter_leaves(node: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf with its dotted path, in order; elements of arrays are named by their index."""
    node = unwrap(node)
    if isinstance(node, dict | list | tuple):
        for key, value in fields_of(node):
            yield from iter_leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def map_leaves(node: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """Return *node* with *change* applied to its leaves; type hints for bincode are kept."""
    if isinstance(node, Some | Variant):
        return replace(node, value=map_leaves(node.value, change))
    if isinstance(node, dict):
        kind = Map if isinstance(node, Map) else dict
        return kind((key, map_leaves(value, change)) for key, value in node.items())
    if isinstance(node, list | tuple):
        return type(node)(map_leaves(value, change) for value in node)
    return change(node)


def convert_tensors(node: Tree, convert: Callable[[RawTensor], Tree]) -> Tree:
    """Return *node* with the result of *convert* in the place of each `RawTensor`."""
    return map_leaves(node, lambda leaf: convert(leaf) if isinstance(leaf, RawTensor) else leaf)
