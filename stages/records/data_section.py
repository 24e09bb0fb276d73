"""Tensors one after the other in a file, where a header says what lies where: checked, read and written."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob
from stages.records.dtypes import ITEM_SIZES
from stages.records.record_tree import RawTensor

MAX_RANK = 32
MAX_ELEMENTS = 1 << 63
BOOL_STORES = {"Native": 1, "U8": 1, "U32": 4}
"""How Burn since 0.21 stores a Bool, in the order of its enum, with the bytes of one."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What a header says of a tensor: its bytes lie from *start* to *end* in the data section."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    width: int = 0
    """Bytes of one element in the file, where that is not what the dtype says."""


class SectionReader(Protocol):
    """What of a `ByteReader` a data section needs."""

    name: str
    offset: int

    def read_array(self, size: int) -> Blob:
        """The next *size* bytes in memory of their own."""

    def skip(self, size: int) -> None:
        """Go past *size* bytes."""


def check_shape(shape: tuple[int, ...], name: str, *, where: str) -> int:
    """How many elements *shape* has. Raises `RecordError` where that is more than any memory could hold."""
    if len(shape) > MAX_RANK:
        raise RecordError(f"{where}: {name} has {len(shape)} dimensions, at most {MAX_RANK} are read")
    # sizes beside a 0 count too: what makes a view of such a tensor multiplies them as well
    if min(shape, default=0) < 0 or math.prod(max(size, 1) for size in shape) >= MAX_ELEMENTS:
        raise RecordError(f"{where}: {name} has the shape {list(shape)}, which no memory could hold")
    return math.prod(shape)


def check_entry(place: TensorEntry, name: str, *, where: str) -> TensorEntry:
    """*place* itself. Raises `RecordError` where its bytes are not those of its shape and dtype."""
    expected = check_shape(place.shape, name, where=where) * (place.width or ITEM_SIZES[place.dtype])
    if place.start < 0 or place.end - place.start != expected:
        raise RecordError(
            f"{where}: {name} lies from {place.start} to {place.end}, but shape {list(place.shape)} "
            f"of {place.dtype} takes {expected} bytes"
        )
    return place


def sort_entries(places: Mapping[str, TensorEntry]) -> list[tuple[str, TensorEntry]]:
    """*places* as their bytes follow one another."""
    return sorted(places.items(), key=lambda pair: (pair[1].start, pair[1].end))


def read_section(
    source: SectionReader, places: Mapping[str, TensorEntry], *, keep_data: bool
) -> dict[str, RawTensor]:
    """The tensors of a data section that begins here, in the order of their bytes; holes are gone past.

    Raises `RecordError` where two overlap, or one lies beyond the end.
    """
    tensors = {}
    position = 0
    for name, place in sort_entries(places):
        if place.start < position:
            raise RecordError(
                f"{source.name}: {name} begins at {place.start} of the data, inside the tensor before it, "
                f"which ends at {position}"
            )
        source.skip(place.start - position)
        tensors[name] = read_tensor(source, place, name=name, keep_data=keep_data)
        position = place.end
    return tensors


def read_tensor(source: SectionReader, place: TensorEntry, *, name: str, keep_data: bool) -> RawTensor:
    """The tensor whose bytes come next."""
    if not keep_data:
        source.skip(place.end - place.start)
        return build_tensor_without_data(place.dtype, place.shape)
    data = source.read_array(place.end - place.start)
    where = f"{source.name}, before offset {source.offset}: {name}"
    return build_tensor(place.dtype, place.shape, data=data, where=where)


def build_tensor(dtype: str, shape: tuple[int, ...], *, data: Blob, where: str) -> RawTensor:
    """The tensor over *data*; a Bool that was stored in words is one byte each then.

    Raises `RecordError` where a Bool is neither 0 nor 1.
    """
    if dtype == "Bool" and data.size:
        values: NDArray[np.unsignedinteger[Any]] = data if data.size == math.prod(shape) else data.view("<u4")
        if values.max() > 1:
            raise RecordError(f"{where} is Bool but holds {values.max()}, not 0 or 1")
        data = values.astype(np.uint8, copy=False)
    return RawTensor(dtype, shape, _Held(data))


class _Held:
    """The pieces of a tensor whose bytes are in memory; small, as a file may have many that are empty."""

    __slots__ = ("_data",)

    def __init__(self, data: Blob) -> None:
        self._data = data

    def __call__(self) -> tuple[memoryview]:
        return (self._data.data,)


def build_tensor_without_data(dtype: str, shape: tuple[int, ...]) -> RawTensor:
    """A tensor of which only *dtype* and *shape* were read."""
    return RawTensor(dtype, shape, _not_kept)


def iter_bytes(tensor: RawTensor, name: str) -> Iterator[memoryview]:
    """The bytes of *tensor*. Raises `RecordError` where they are not as many as its shape says."""
    written = 0
    for piece in tensor.pieces():
        yield piece
        written += piece.nbytes
    if written != tensor.nbytes:
        raise RecordError(
            f"{name} gave {written} bytes, but shape {list(tensor.shape)} takes {tensor.nbytes}"
        )


def _not_kept() -> Iterator[memoryview]:
    raise RecordError("the bytes of this tensor were not kept: read the file with its data")
