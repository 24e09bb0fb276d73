"""Tensors as every Burn from 0.9 to 0.21 wrote them into named records, made one kind: `RawTensor`.

Since 0.14 a tensor is a map of ``bytes``, ``shape`` and ``dtype``; a bool's dtype became a map in 0.21.
Until 0.13 it was ``value``, a list of numbers, and ``shape``: floats as such, half floats as their bits, and
what kind of numbers they are stood in the metadata only.
"""

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.dtypes import ITEM_SIZES
from stages.records.limits import ADVICE, LEAST_NUMBERS
from stages.records.record_tree import Metadata, RawTensor, Tree

Array = NDArray[Any]

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 63
MAX_DEPTH = 128

_DATA_KEYS = {"bytes", "shape", "dtype"}
_VALUE_KEYS = {"value", "shape"}
_BOOL_STORES = {"Native": 1, "U8": 1, "U32": 4}
"""How 0.21 stores a bool, with the bytes of one."""
_FLOATS = {"f32": ("F32", "<f4"), "f64": ("F64", "<f8")}
_HALVES = {"f16": "F16", "bf16": "BF16"}
"""Written as their bits, as unsigned integers of 16 bits."""
_INTEGERS = {f"{kind}{bits}": f"{kind}{bits}".upper() for kind in "iu" for bits in (8, 16, 32, 64)}
_SINCE_BYTES = re.compile(r"0\.(1[5-9]|[2-9]\d)\.|[1-9]")
"""Versions that never wrote values; some that call themselves 0.14.0 did, before it was out."""


def restore_tensors(
    node: Tree, metadata: Metadata, source_name: str, *, max_numbers: int = LEAST_NUMBERS
) -> Tree:
    """*node* as a reader of MessagePack or JSON left it, with a `RawTensor` for every map that is a tensor.

    Numbers that a reader put into an array, and that are not a tensor's, are a list again; a blob is bytes.
    Raises `RecordError` with the dotted path for a tensor whose parts do not fit, an invalid name, or more
    than *max_numbers* numbers in lists.
    """
    return _Reader(metadata, source_name, max_numbers).node(node, ())


class _Reader:
    """Goes through a tree, and knows where it is."""

    def __init__(self, metadata: Metadata, source_name: str, max_numbers: int) -> None:
        self._metadata = metadata
        self._source_name = source_name
        self._numbers = 0
        self._max_numbers = max_numbers
        self._has_values = not _SINCE_BYTES.match(metadata.version)

    def node(self, node: Tree, path: tuple[str, ...]) -> Tree:
        if len(path) > MAX_DEPTH:
            raise self._error(path[:8], f"goes down more than {MAX_DEPTH} levels")
        if isinstance(node, dict):
            if node.keys() == _DATA_KEYS:
                return self._data_tensor(node, path)
            if self._has_values and _is_value_tensor(node):
                return self._value_tensor(node, path)
            return {self._name(key, path): self.node(value, (*path, key)) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [self.node(value, (*path, str(index))) for index, value in enumerate(node)]
        if isinstance(node, np.ndarray):
            return node.tobytes() if node.dtype == np.uint8 else self._listed(node, path)
        return node

    def _listed(self, numbers: NDArray[Any], path: tuple[str, ...]) -> list[Any]:
        self._numbers += numbers.size
        if self._numbers > self._max_numbers:
            raise self._error(
                path,
                f"more than {self._max_numbers} numbers are in lists and not in tensors; {ADVICE}",
            )
        listed: list[Any] = numbers.tolist()
        return listed

    def _data_tensor(self, node: dict[str, Tree], path: tuple[str, ...]) -> RawTensor:
        shape = self._shape(node["shape"], path)
        dtype, item_size = self._dtype(node["dtype"], path)
        data = node["bytes"]
        size = data.size if _is_skipped(data) else len(blob := self._blob(data, path))
        if size != math.prod(shape) * item_size:
            raise self._error(
                path,
                f"holds {size} bytes, expected {math.prod(shape) * item_size} ({dtype}, shape {list(shape)})",
            )
        if _is_skipped(data):
            return self._unread(dtype, shape, path)
        return RawTensor.of(dtype, shape, self._bools(blob, item_size, path) if dtype == "Bool" else blob)

    def _value_tensor(self, node: dict[str, Tree], path: tuple[str, ...]) -> RawTensor:
        shape = self._shape(node["shape"], path)
        try:
            dtype, values = decode_values(node["value"], self._metadata)
        except RecordError as error:
            raise self._error(path, str(error)) from error
        if len(values) != math.prod(shape):
            raise self._error(
                path, f"holds {len(values)} values, expected {math.prod(shape)} for {list(shape)}"
            )
        return RawTensor.of(dtype, shape, values.view(np.uint8))

    def _shape(self, node: Tree, path: tuple[str, ...]) -> tuple[int, ...]:
        if not _is_list(node) or len(node) > MAX_DIMENSIONS:
            raise self._error(path, f"its shape should be a list of at most {MAX_DIMENSIONS} sizes")
        shape = tuple(node.tolist() if isinstance(node, np.ndarray) else node)
        if not all(type(length) is int and length >= 0 for length in shape):
            raise self._error(path, f"its shape should be whole numbers from 0, not {list(shape)!s:.200}")
        # sizes beside a 0 count too: what makes a view of such a tensor multiplies them as well
        if math.prod(max(length, 1) for length in shape) >= MAX_ELEMENTS:
            raise self._error(path, f"its shape {list(shape)!s:.200} has more elements than 2**63")
        return shape

    def _dtype(self, node: Tree, path: tuple[str, ...]) -> tuple[str, int]:
        """The dtype's name, and the bytes of one element in the file."""
        if isinstance(node, dict) and len(node) == 1:
            name, variant = next(iter(node.items()))
            if name == "QFloat":
                raise self._error(
                    path,
                    f"is quantised ({variant!s:.200}), which only Burn can read: dequantise it there first",
                )
            if name == "Bool" and isinstance(variant, str) and variant in _BOOL_STORES:
                return "Bool", _BOOL_STORES[variant]
        if isinstance(node, str) and node in ITEM_SIZES:
            return ("F32" if node == "Flex32" else node), ITEM_SIZES[node]
        raise self._error(path, f"its dtype should be one of {', '.join(ITEM_SIZES)}, there is {node!s:.200}")

    def _blob(self, data: Tree, path: tuple[str, ...]) -> NDArray[Any]:
        """*data*, a blob or a list of numbers from 0 to 255, as bytes in memory."""
        if isinstance(data, bytes):
            return np.frombuffer(data, np.uint8)
        if isinstance(data, np.ndarray) and data.dtype == np.uint8:
            return data
        if isinstance(data, list) and all(type(byte) is int and 0 <= byte < 256 for byte in data):
            return np.array(data, np.uint8)
        if isinstance(data, np.ndarray) and data.dtype.kind in "iu" and not ((data < 0) | (data > 255)).any():
            return data.astype(np.uint8)
        raise self._error(path, "its bytes should be binary, or a list of numbers from 0 to 255")

    def _bools(self, blob: NDArray[Any], item_size: int, path: tuple[str, ...]) -> NDArray[Any]:
        values = blob if item_size == 1 else blob.view("<u4")
        if values.size and values.max() > 1:
            raise self._error(path, f"is Bool and holds {values.max()}, expected 0 and 1 only")
        return values if item_size == 1 else values.astype(np.uint8)

    def _unread(self, dtype: str, shape: tuple[int, ...], path: tuple[str, ...]) -> RawTensor:
        def pieces() -> tuple[memoryview, ...]:
            raise self._error(path, "was read without its data")

        return RawTensor(dtype, shape, pieces)

    def _name(self, key: Tree, path: tuple[str, ...]) -> str:
        if not isinstance(key, str) or "\0" in key or ".." in key:
            raise self._error(path, f"has the name {key!r:.200}: a name is text without NUL and '..'")
        return key

    def _error(self, path: tuple[str, ...], what: str) -> RecordError:
        return RecordError(f"{self._source_name}, {'.'.join(path) or 'the item'}: {what}")


def _is_value_tensor(node: dict[str, Tree]) -> bool:
    """Whether a map is a tensor of 0.13 or before, and not a struct that happens to have such fields."""
    return (
        node.keys() == _VALUE_KEYS
        and _is_list(node["value"])
        and _is_list(node["shape"])
        and all(isinstance(length, int | np.integer) for length in node["shape"])
    )


def _is_list(node: Tree) -> bool:
    return isinstance(node, list | np.ndarray)


def _is_skipped(node: Tree) -> bool:
    return hasattr(node, "size") and not isinstance(node, np.ndarray)


def decode_values(values: Tree, metadata: Metadata) -> tuple[str, Array]:
    """The dtype of *values* (a list or an array) and their elements as a file has them, little-endian.

    Where half floats are written as whole numbers an integer tensor looks the same, unless one is negative;
    such records have floats all but always, so that is what they are taken for. Raises `RecordError`, without
    a path.
    """
    kind = _kind(values)
    float_type = metadata.float.rsplit("::", 1)[-1]
    if kind == "bool":
        return "Bool", np.asarray(values, np.uint8)
    if kind == "empty":
        kind = "float"
    if kind == "int" and float_type in _HALVES and _smallest(values) >= 0:
        return _HALVES[float_type], _integers(values, "u16")
    if kind == "int":
        return _named_integers(values, metadata.int)
    if float_type in _FLOATS:
        dtype, layout = _FLOATS[float_type]
        return dtype, _floats(values, layout)
    if float_type in _HALVES and len(values) == 0:
        return _HALVES[float_type], np.empty(0, "<u2")
    raise RecordError(f"its values are floats, and the metadata calls floats {metadata.float!r:.200}")


def _kind(values: Tree) -> str:
    if len(values) == 0:
        return "empty"
    if isinstance(values, np.ndarray):
        return {"b": "bool", "f": "float", "i": "int", "u": "int"}.get(values.dtype.kind, "other")
    kinds = set(map(type, values))
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        return "int"
    if kinds <= {int, float}:
        return "float"
    names = ", ".join(sorted(kind.__name__ for kind in kinds - {int, float, bool})) or "bool among numbers"
    raise RecordError(
        f"its values should be numbers, there is {names} (JSON has null for NaN and infinity, as which Burn "
        "cannot read them either)"
    )


def _floats(values: Tree, layout: str) -> Array:
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, layout)
    except OverflowError as error:
        raise RecordError(f"its values have one that no float holds: {error}") from error


def _named_integers(values: Tree, name: str) -> tuple[str, Array]:
    if name not in _INTEGERS:
        raise RecordError(f"its values are integers, and the metadata calls integers {name!r:.200}")
    return _INTEGERS[name], _integers(values, name)


def _integers(values: Tree, name: str) -> Array:
    limits = np.iinfo(np.dtype(f"{name[0]}{int(name[1:]) // 8}"))
    low, high = _smallest(values), _largest(values)
    if low < limits.min or high > limits.max:
        raise RecordError(f"its values go from {low} to {high}, which does not fit the metadata's {name}")
    return np.asarray(values, limits.dtype.newbyteorder("<"))


def _smallest(values: Tree) -> int:
    return int(values.min() if isinstance(values, np.ndarray) else min(values))


def _largest(values: Tree) -> int:
    return int(values.max() if isinstance(values, np.ndarray) else max(values))
