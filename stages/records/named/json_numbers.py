"""Numbers of a long JSON list as an array, in the smallest type: a digit of text is not worth eight bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]


def are_alike(values: list[Any]) -> bool:
    """Whether they are all numbers, or all bools."""
    kinds = set(map(type, values))
    return kinds <= {int, float} or kinds == {bool}


def numbers_of(values: list[Any]) -> Numbers:
    """*values*, of which there are some, as an array. Raises `ValueError` where one does not fit any type."""
    if not are_alike(values):
        raise ValueError("a long list of values that are not all numbers or all bools")
    try:
        array = np.array(values)
    except OverflowError as error:
        raise ValueError(f"a number is larger than 64 bits: {error}") from error
    has_float = array.dtype.kind == "f" and float in set(map(type, values))
    if array.dtype == object or (array.dtype.kind == "f" and not has_float):
        raise ValueError("a number is larger than 64 bits")
    if has_float and not np.isfinite(array).all():
        raise ValueError("a number is larger than any float")
    return _narrowed(array)


def widened_type(array: Numbers, numbers: Numbers) -> np.dtype[Any]:
    """The type that holds *array* and *numbers* too. Raises `ValueError` where there is none."""
    kinds = {array.dtype.kind, numbers.dtype.kind}
    dtype = np.result_type(array, numbers)
    if "b" in kinds and len(kinds) > 1:
        raise ValueError("a list of numbers and bools")
    if dtype.kind == "f" and "f" not in kinds:
        raise ValueError("a number is larger than 64 bits")
    return dtype


def _narrowed(array: Numbers) -> Numbers:
    if array.dtype != np.int64:
        return array
    low, high = array.min(), array.max()
    for kind in (np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array
