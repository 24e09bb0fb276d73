"""The differences of two records: names, shapes, dtypes and values, independent of their file formats."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.records.dotted_names import is_parameter
from stages.records.precision import iter_numbers
from stages.records.record_tree import RawTensor, Tree, fields_of, unwrap

PIECE_ELEMENTS = 1 << 18
"""The number of elements that are compared at a time: a few MiB, independent of the size of the tensors."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Difference:
    """A name at which two records differ."""

    path: str
    what: str
    """``only in the first``, ``only in the second``, ``kind``, ``shape``, ``dtype`` or ``value``."""
    first: str = ""
    second: str = ""
    largest: float | None = None
    """The largest absolute difference of two elements; infinite if only one of them is NaN or infinite."""
    relative: float | None = None
    """The largest difference of two elements, relative to the larger magnitude."""


def find_differences(
    first: Tree, second: Tree, *, tolerance: float = 0.0, ids: bool = False
) -> Iterator[Difference]:
    """Yield the differences of two records.

    The names of *first* come first, in its order, then those that only *second* has. NaN equals NaN, and nil
    equals a missing value.

    Args:
        first: A record.
        second: The record to compare it with.
        tolerance: The largest absolute difference of values that count as equal. Default: 0.
        ids: Whether to compare the ids of parameters. Default: no.
    """
    first_leaves, second_leaves = _leaves_by_name(first, ids=ids), _leaves_by_name(second, ids=ids)
    for path, value in first_leaves.items():
        if path not in second_leaves:
            yield Difference(path, "only in the first", first=_describe(value))
        else:
            yield from _compare_leaves(path, value, second_leaves[path], tolerance)
    for path, value in second_leaves.items():
        if path not in first_leaves:
            yield Difference(path, "only in the second", second=_describe(value))


def distance(first: RawTensor, second: RawTensor) -> tuple[float, float]:
    """Return the largest absolute and the largest relative difference of two tensors with the same shape."""
    largest = relative = 0.0
    pieces = (iter_numbers(tensor, PIECE_ELEMENTS) for tensor in (first, second))
    for values, other_values in zip(*pieces, strict=True):
        apart, scale = _gaps(values, other_values)
        if not apart.any():
            continue
        largest = max(largest, float(apart.max()))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(apart == 0, 0.0, apart / scale)
        relative = max(relative, float(np.where(np.isnan(shares), np.inf, shares).max()))
    return largest, relative


def _leaves_by_name(tree: Tree, *, ids: bool) -> dict[str, Any]:
    """Return the leaves of *tree* by their names; the tensor of a parameter has the name of the parameter."""
    leaves: dict[str, Any] = {}
    for path, leaf in _iter_named(tree, "", ids=ids):
        while path in leaves:  # a key that contains dots may equal a path
            path += " (again)"  # noqa: PLW2901
        leaves[path] = leaf
    return leaves


def _iter_named(node: Tree, path: str, *, ids: bool) -> Iterator[tuple[str, Any]]:
    node = unwrap(node)
    if is_parameter(node):
        yield path, node["param"]
        if ids:
            yield f"{path}.id", node["id"]
    elif isinstance(node, dict | list | tuple):
        for key, value in fields_of(node):
            yield from _iter_named(value, f"{path}.{key}" if path else str(key), ids=ids)
    elif node is not None:
        yield path, node


def _compare_leaves(path: str, first: Any, second: Any, tolerance: float) -> Iterator[Difference]:
    difference = partial(Difference, path, first=_describe(first), second=_describe(second))
    if isinstance(first, RawTensor) and isinstance(second, RawTensor):
        if first.shape != second.shape:
            yield difference("shape")
            return
        largest, relative = distance(first, second)
        if first.dtype != second.dtype or largest > tolerance:
            what = "value" if first.dtype == second.dtype else "dtype"
            yield difference(what, largest=largest, relative=relative)
    elif _is_number(first) and _is_number(second):
        apart, scale = _gaps(np.array([first]), np.array([second]))
        if apart[0] > tolerance:
            yield difference("value", largest=float(apart[0]), relative=float(apart[0] / scale[0]))
    elif type(first) is not type(second):
        yield difference("kind")
    elif first != second:
        yield difference("value")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _gaps(first: Array, second: Array) -> tuple[Array, Array]:
    """Return absolute differences and larger magnitudes: exact for integers of one dtype, else in float64."""
    if first.dtype == second.dtype and first.dtype.kind in "iu":
        unsigned = first.dtype.str.replace("i", "u")
        gaps = (np.maximum(first, second).view(unsigned) - np.minimum(first, second).view(unsigned)).astype(
            "f8"
        )
        return gaps, np.maximum(np.abs(first.astype("f8")), np.abs(second.astype("f8")))
    values, others = first.astype("f8"), second.astype("f8")
    same = (values == others) | (np.isnan(values) & np.isnan(others))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(values - others))
    return np.where(np.isnan(gaps), np.inf, gaps), np.fmax(np.abs(values), np.abs(others))


def _describe(value: Any) -> str:
    if isinstance(value, RawTensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value if isinstance(value, str) else repr(value)
