"""How many bits a number keeps in a file: Burn's precision settings, applied piece by piece while writing."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.records.dtypes import FLOATS, INTEGERS, ITEM_SIZES, NUMPY
from stages.records.record_tree import RawTensor

PIECE_SIZE = 4 << 20
"""Bytes at most in memory at once for a tensor that is being converted, before and after."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Precision:
    """Burn's `PrecisionSettings`: the names it has in the metadata, and the element types it stands for."""

    settings: str
    float_type: str
    int_type: str
    float_dtype: str | None
    """What floats become: F64, F32, F16, or None for each its own."""
    int_dtype: str | None
    """What integers become; None for each its own."""

    def convert(self, tensor: RawTensor) -> RawTensor:
        """*tensor* in this precision, converted when its pieces are asked for; itself where it already is.

        Floats round to the nearest, ties to even, once; what is too large becomes infinite. Integers that do
        not fit, one or all, keep their type: Burn converts on load. Bool stays.
        """
        target = self._target(tensor)
        if target == tensor.dtype:
            return tensor
        return RawTensor(target, tensor.shape, partial(_converted, tensor, target))

    def _target(self, tensor: RawTensor) -> str:
        if tensor.dtype in FLOATS:
            return self.float_dtype or tensor.dtype
        if tensor.dtype in INTEGERS and self.int_dtype and _fits(tensor, self.int_dtype):
            return self.int_dtype
        return tensor.dtype


FullPrecision = Precision("FullPrecisionSettings", "f32", "i32", "F32", "I32")
"""Burn's default."""
HalfPrecision = Precision("HalfPrecisionSettings", "half::binary16::f16", "i16", "F16", "I16")
"""Half the size, for inference: a run does not resume exactly from it."""
DoublePrecision = Precision("DoublePrecisionSettings", "f64", "i64", "F64", "I64")
"""Nothing that torch or Burn can hold is lost."""
OriginalPrecision = Precision("FullPrecisionSettings", "f32", "i32", None, None)
"""Every tensor in its own type, bit for bit, under the name of full precision."""


def _converted(tensor: RawTensor, target: str) -> Iterator[memoryview]:
    cast = _cast(tensor.dtype, target)
    for chunk in _chunks(tensor, ITEM_SIZES[target]):
        yield cast(chunk).data.cast("B")


def _cast(source: str, target: str) -> Callable[[Array], Array]:
    def cast(values: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # too large is infinite, and that is meant
            if source == "BF16":
                values = (values.astype("<u4") << 16).view("<f4")
            return values.astype(NUMPY[target])

    return cast


def _fits(tensor: RawTensor, target: str) -> bool:
    """Whether every element is in the range of *target*; reads them only where the types leave it open."""
    own, other = np.iinfo(NUMPY[tensor.dtype]), np.iinfo(NUMPY[target])
    if other.min <= own.min and own.max <= other.max:
        return True
    return all(
        other.min <= int(chunk.min()) and int(chunk.max()) <= other.max
        for chunk in _chunks(tensor, ITEM_SIZES[target])
    )


def _chunks(tensor: RawTensor, target_size: int) -> Iterator[Array]:
    """The elements of *tensor*, in arrays of whole elements, none empty or larger than `PIECE_SIZE`."""
    size = ITEM_SIZES[tensor.dtype]
    step = PIECE_SIZE // max(size, target_size) * size
    for piece in _whole(tensor.pieces(), size):
        for start in range(0, len(piece), step):
            yield np.frombuffer(piece[start : start + step], NUMPY[tensor.dtype])


def _whole(pieces: Iterable[memoryview], size: int) -> Iterator[memoryview]:
    """*pieces* again, with the border moved where it ran through an element of *size* bytes."""
    rest = b""
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if rest:
            missing = min(size - len(rest), len(view))
            rest, view = rest + bytes(view[:missing]), view[missing:]
            if len(rest) == size:
                yield memoryview(rest)
                rest = b""
        end = len(view) - len(view) % size
        if end:
            yield view[:end]
        rest += bytes(view[end:])
