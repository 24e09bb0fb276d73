"""Precision of numbers in a file: Burn's precision settings, applied piece by piece while writing."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.records.byte_readers import rechunk
from stages.records.record_tree import FLOATS, INTEGERS, ITEM_SIZES, NUMPY, RawTensor

PIECE_SIZE = 4 << 20
"""Upper bound on the bytes in memory, before or after conversion, of a tensor that is being converted."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Precision:
    """Burn's `PrecisionSettings`: the names in the metadata, and the element types they select."""

    settings: str
    float_type: str
    int_type: str
    float_dtype: str | None
    """Type of floats in the file: F64, F32 or F16; None keeps the type of each tensor."""
    int_dtype: str | None
    """Type of integers in the file; None keeps the type of each tensor."""

    def convert(self, tensor: RawTensor) -> RawTensor:
        """Return *tensor* in this precision, converted when its pieces are requested.

        A tensor that already has the type is returned unchanged. Floats are rounded once, to the nearest,
        ties to even; values that are too large become infinite. An integer tensor keeps its type if any
        element does not fit, because Burn converts on load. Bool is unchanged.
        """
        target = self._target(tensor)
        if target == tensor.dtype:
            return tensor
        return RawTensor(target, tensor.shape, partial(_convert_pieces, tensor, target))

    def _target(self, tensor: RawTensor) -> str:
        if tensor.dtype in FLOATS:
            return self.float_dtype or tensor.dtype
        if tensor.dtype in INTEGERS and self.int_dtype and _fits_into(tensor, self.int_dtype):
            return self.int_dtype
        return tensor.dtype


FullPrecision = Precision("FullPrecisionSettings", "f32", "i32", "F32", "I32")
"""Burn's default."""
HalfPrecision = Precision("HalfPrecisionSettings", "half::binary16::f16", "i16", "F16", "I16")
"""Half the size, for inference. A run does not resume exactly from it."""
DoublePrecision = Precision("DoublePrecisionSettings", "f64", "i64", "F64", "I64")
"""Preserves every value that torch or Burn can represent."""
OriginalPrecision = Precision("FullPrecisionSettings", "f32", "i32", None, None)
"""Keeps the type of every tensor, bit for bit; the metadata declares full precision."""
PRECISIONS = {"full": FullPrecision, "half": HalfPrecision, "double": DoublePrecision}
"""The precisions by their names in params."""


def iter_numbers(tensor: RawTensor, size: int) -> Iterator[Array]:
    """Yield the elements of *tensor*, BF16 as float32, in arrays of up to *size* elements."""
    for chunk in rechunk(tensor.pieces(), size * ITEM_SIZES[tensor.dtype]):
        numbers = np.frombuffer(chunk, NUMPY[tensor.dtype])
        if tensor.dtype == "BF16":  # the upper half of a float32
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        yield numbers


def _convert_pieces(tensor: RawTensor, target: str) -> Iterator[memoryview]:
    for numbers in _iter_chunks(tensor, target):
        with np.errstate(over="ignore", invalid="ignore"):  # overflow to infinity is intended
            converted = numbers.astype(NUMPY[target])
        yield converted.data.cast("B")


def _fits_into(tensor: RawTensor, target: str) -> bool:
    """Return True if every element is in the range of *target*; read them only if the types do not decide."""
    limits, other = np.iinfo(NUMPY[tensor.dtype]), np.iinfo(NUMPY[target])
    if other.min <= limits.min and limits.max <= other.max:
        return True
    return all(
        other.min <= int(numbers.min()) and int(numbers.max()) <= other.max
        for numbers in _iter_chunks(tensor, target)
    )


def _iter_chunks(tensor: RawTensor, target: str) -> Iterator[Array]:
    """Yield the elements of *tensor* in arrays that take at most `PIECE_SIZE`, also as *target*."""
    return iter_numbers(tensor, PIECE_SIZE // max(ITEM_SIZES[tensor.dtype], ITEM_SIZES[target]))
