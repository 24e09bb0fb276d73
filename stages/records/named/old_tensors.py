"""The numbers of a tensor of Burn 0.13 and before, whose kind only the metadata says."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.tree import Metadata, Tree

Array = NDArray[Any]

_FLOATS = {"f32": ("F32", "<f4"), "f64": ("F64", "<f8")}
_HALVES = {"f16": "F16", "bf16": "BF16"}
"""Written as their bits, as unsigned integers of 16 bits."""
_INTEGERS = {f"{kind}{bits}": f"{kind}{bits}".upper() for kind in "iu" for bits in (8, 16, 32, 64)}


def packed_values(values: Tree, metadata: Metadata) -> tuple[str, Array]:
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
