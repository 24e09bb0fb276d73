"""Arrays of the numbers in MessagePack and JSON lists: Burn until 0.13 wrote tensors as lists of millions.

The types are small because a number of one byte in a file must not take eight bytes of memory.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]


class NumberArray:
    """The first numbers, or bools, of a list of *size*, in the smallest type that holds them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._filled = 0
        self._values: Numbers = np.empty(0, np.bool_)

    @property
    def missing(self) -> int:
        """Return how many numbers of the list were not added yet."""
        return self._size - self._filled

    def array(self) -> Numbers:
        """Return the numbers that were added."""
        return self._values[: self._filled]

    def add(self, numbers: list[Any]) -> int:
        """Append *numbers*, at least one, and return how many bytes of memory were allocated.

        Raises `ValueError` if one is not a number, does not fit into any type, or is a bool among numbers.
        """
        values = to_array(numbers)
        dtype = _widen_dtype(self._values, values) if self._filled else values.dtype
        allocated = 0
        if not self._filled or dtype != self._values.dtype:
            # The operating system does not allocate pages of memory that are never written.
            self._values = self._values.astype(dtype) if self._filled else np.empty(self._size, dtype)
            allocated = self._values.nbytes
        self._values[self._filled : self._filled + len(values)] = values
        self._filled += len(values)
        return allocated


def to_array(values: list[Any]) -> Numbers:
    """Return *values*, which must not be empty, as an array of the smallest type, but never of 8 bits.

    Raises `ValueError` if one does not fit into any type.
    """
    kinds = set(map(type, values))
    if not kinds <= {int, float} and kinds != {bool}:
        others = ", ".join(sorted(kind.__name__ for kind in kinds - {int, float}))
        raise ValueError(f"a list has {others} among numbers")
    try:
        array = np.array(values)
    except OverflowError as error:
        raise ValueError(f"a number does not fit into 64 bits: {error}") from error
    if array.dtype == object or (array.dtype.kind == "f" and float not in kinds):
        raise ValueError("a number does not fit into 64 bits")
    if array.dtype != np.int64:
        return array
    low, high = array.min(), array.max()
    for kind in (np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def _widen_dtype(array: Numbers, numbers: Numbers) -> np.dtype[Any]:
    """Return the type that holds both *array* and *numbers*. Raises `ValueError` if none does."""
    kinds = {array.dtype.kind, numbers.dtype.kind}
    dtype = np.result_type(array, numbers)
    if "b" in kinds and len(kinds) > 1:
        raise ValueError("a list mixes numbers and bools")
    if dtype.kind == "f" and "f" not in kinds:
        raise ValueError("a number does not fit into 64 bits")
    return dtype
