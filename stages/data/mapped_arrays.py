"""Arrays in files that are mapped into memory, of which only the rows in use are resident."""

import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np

SPAN_BYTES = 1 << 25
"""The part of a file from which rows are gathered before its pages are released."""


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
    if mapping is not None and hasattr(mapping, "madvise"):
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
