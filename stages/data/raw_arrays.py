"""Raw arrays: in memory or in mapped files, and the checks of their shapes, types and values."""

import math
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stages.contracts.errors import DataError
from stages.contracts.outputs import IGNORED_TARGET
from stages.data.image_files import ImageFiles
from stages.data.sources.tables import TableRows
from stages.data.splits import Arrays

SPAN_BYTES = 1 << 25
"""The part of a file from which rows are gathered before its pages are released."""


MAX_CLASSES = 10_000_000
BLOCK_BYTES = 1 << 22
"""Memory of one block of rows in a pass over an array."""


def map_array(path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return the array of *shape* that begins at byte *offset* of *path*; it cannot be changed."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.ndarray(shape, dtype, buffer=mapping, offset=offset)


def is_mapped(array: np.ndarray) -> bool:
    """Return whether *array* is in a file that is mapped into memory."""
    return _find_mapping(array) is not None


def release(array: np.ndarray) -> None:
    """Release the memory of the pages of a mapped *array*; they are read again when they are used."""
    mapping = _find_mapping(array)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def gather(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return *rows*, in ascending order, of a mapped *array*; at most `SPAN_BYTES` of it are resident."""
    gathered = np.empty((len(rows), *array.shape[1:]), array.dtype)
    span = max(1, SPAN_BYTES // max(1, array.nbytes // len(array)))
    start = 0
    while start < len(rows):
        stop = int(np.searchsorted(rows, rows[start] + span))
        gathered[start:stop] = array[rows[start:stop]]
        release(array)
        start = stop
    return gathered


def _find_mapping(array: Any) -> mmap.mmap | None:
    """Return the mapping of which *array* is a view; None if it is not in a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None


def check(arrays: Arrays, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Check *arrays*, and return inputs and targets that can be stored without loss.

    *where* names the arrays in errors if they have no names of their own. Raises `DataError` if an array
    is not numeric, has a wrong shape, is empty, or has a value that cannot be stored.
    """
    names = arrays.names or (f"{where}: inputs", f"{where}: targets")
    inputs, targets = (
        _array(value, name) for value, name in zip((arrays.inputs, arrays.targets), names, strict=True)
    )
    if len(inputs) != len(targets):
        raise DataError(
            f"{names[0]} and {names[1]} must have the same number of samples; "
            f"found {len(inputs)} and {len(targets)}. Remove the samples without a partner"
        )
    for array, name in zip((inputs, targets), names, strict=True):
        if not isinstance(array, ImageFiles | TableRows):
            _check_values(array, name)
    if targets.dtype.kind != "f":
        _check_classes(targets, inputs, names[1])
    return inputs, targets


def check_type(dtype: np.dtype[Any], name: str) -> None:
    """Raise `DataError` if an array of *dtype* cannot be converted to a tensor."""
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise DataError(
            f"{name} must be numbers of at most 64 bits; found {dtype}. "
            "Convert the array to float32, or to integers"
        )


def input_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which inputs of *dtype* are stored: float32 for floats, else their own type."""
    return np.dtype(np.float32) if dtype.kind == "f" else dtype.newbyteorder("=")


def target_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which targets of *dtype* are stored: float32 for floats, int64 for classes."""
    return np.dtype(np.float32 if dtype.kind == "f" else np.int64)


def row_blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield slices that divide *rows* into blocks of about `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _array(value: Any, name: str) -> np.ndarray:
    if isinstance(value, ImageFiles | TableRows):
        return value  # type: ignore[return-value]  # arrays of numbers in files, which they check
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(f"{name} must not be a masked array; found one. Fill it or remove the masked samples")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be converted to an array: {error}") from error
    check_type(array.dtype, name)
    if not array.ndim:
        raise DataError(f"{name} must have one row per sample; found shape (). Save an array of shape (N, …)")
    if not len(array):
        raise DataError(f"{name} must have at least one sample; found shape {array.shape}. Add samples")
    if 0 in array.shape:
        raise DataError(
            f"{name} must have at least one value per sample; found shape {array.shape}. "
            "Check the axes of the array"
        )
    return array


def _check_values(array: np.ndarray, name: str) -> None:
    """Raise `DataError` if *array* has a value that is not finite, or not of its stored type."""
    if array.dtype.kind == "f":
        value = _find_first(array, lambda block: ~np.isfinite(block))
        if value:
            raise DataError(f"{name} must be finite; found {value}. Correct or remove the sample")
    if array.dtype.kind == "f" and array.dtype.itemsize == 8:
        value = _find_first(array, _exceeds_float32)
        if value:
            raise DataError(f"{name} must fit into float32; found {value}. Scale the values")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        value = _find_first(array, lambda block: block > np.iinfo(np.int64).max)
        if value:
            raise DataError(f"{name} must fit into int64; found {value}. Scale the values or renumber them")


def _check_classes(targets: np.ndarray, inputs: np.ndarray, name: str) -> None:
    if targets.ndim > 1 and (targets[0].size == 1 or targets.shape != inputs.shape[: targets.ndim]):
        raise DataError(
            f"{name}: class targets must have shape (N,), or the shape of the inputs for a class at each "
            f"element; found shape {targets.shape} for inputs {inputs.shape}. Save one integer per sample, "
            "or floats for regression"
        )
    ignored = IGNORED_TARGET if targets.ndim > 1 else 0
    if value := _find_first(targets, lambda block: (block < 0) & (block != ignored)):
        raise DataError(
            f"{name}: class targets must be non-negative; found {value}. Number the classes from 0, "
            "or save floats for regression"
        )
    if value := _find_first(targets, lambda block: block >= MAX_CLASSES):
        raise DataError(
            f"{name}: class targets must be below {MAX_CLASSES:,}; found {value}. Number the classes from 0, "
            "or save floats for regression"
        )


def _exceeds_float32(block: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.isinf(block.astype(np.float32))


def _find_first(array: np.ndarray, is_wrong: Callable[[np.ndarray], np.ndarray]) -> str | None:
    """Return the first wrong value of *array* and its sample as text, or None if every value is right."""
    for rows in row_blocks(len(array), array.nbytes // len(array)):
        block = array[rows]
        wrong = is_wrong(block)
        release(array)
        if wrong.any():
            place = np.unravel_index(wrong.argmax(), wrong.shape)
            return f"{block[place]} in sample {rows.start + place[0]}"
    return None
