"""Data sections: tensors stored one after the other, at positions that a header declares.

Burnpack and safetensors have a data section; bincode uses the checks of a single tensor.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob, ByteReader, Skipped, read_blob
from stages.records.record_tree import ITEM_SIZES, MAX_DIMENSIONS, MAX_ELEMENTS, RawTensor


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A header's entry for a tensor whose bytes are at *start* to *end* in the data section."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    width: int = 0
    """Bytes of one element in the file, if the dtype does not determine them; 0 otherwise."""


def check_shape(shape: tuple[int, ...], where: str) -> int:
    """Return the number of elements of *shape*. Raises `RecordError` if no memory could hold them."""
    if len(shape) > MAX_DIMENSIONS:
        raise RecordError(f"{where} has {len(shape)} dimensions, but at most {MAX_DIMENSIONS} are supported")
    # Sizes next to a 0 count too, because a view of such a tensor multiplies them.
    if math.prod(max(size, 1) for size in shape) >= MAX_ELEMENTS:
        raise RecordError(f"{where} has the shape {list(shape)}, which has 2**63 elements or more")
    return math.prod(shape)


def check_size(size: int, dtype: str, shape: tuple[int, ...], *, width: int = 0, where: str) -> None:
    """Raise `RecordError` if a tensor of *size* bytes does not match its shape and dtype.

    An element has *width* bytes in the file; default: those of the dtype.
    """
    expected = check_shape(shape, where) * (width or ITEM_SIZES[dtype])
    if size != expected:
        raise RecordError(
            f"{where} has {size} bytes, but shape {list(shape)} of {dtype} takes {expected} bytes"
        )


def sort_entries(entries: Mapping[str, TensorEntry]) -> list[tuple[str, TensorEntry]]:
    """Return the names and entries in the order of their bytes."""
    return sorted(entries.items(), key=lambda pair: (pair[1].start, pair[1].end))


def read_section(
    source: ByteReader, entries: Mapping[str, TensorEntry], *, keep_data: bool
) -> dict[str, RawTensor]:
    """Return the tensors of the data section that begins here, in the order of their bytes; gaps are skipped.

    Raises `RecordError` if two tensors overlap, or if one extends beyond the end.
    """
    tensors = {}
    position = 0
    for name, entry in sort_entries(entries):
        if entry.start < position:
            raise RecordError(
                f"{source.name}: {name} begins at {entry.start} of the data, inside the previous tensor, "
                f"which ends at {position}"
            )
        source.skip(entry.start - position)
        data = read_blob(source, entry.end - entry.start, keep_data=keep_data)
        where = f"{source.name}, before offset {source.offset}: {name}"
        tensors[name] = build_tensor(entry.dtype, entry.shape, data, width=entry.width, where=where)
        position = entry.end
    return tensors


def build_tensor(
    dtype: str, shape: tuple[int, ...], data: Blob | Skipped, *, width: int = 0, where: str
) -> RawTensor:
    """Return the tensor over *data*, which is not copied; a Bool stored in words is converted to bytes.

    If *data* was skipped, the tensor has a dtype and a shape only. Raises `RecordError` if the length of
    *data* does not match, as for `check_size`, or if a Bool is neither 0 nor 1.
    """
    check_size(data.size, dtype, shape, width=width, where=where)
    if isinstance(data, Skipped):
        return RawTensor(dtype, shape, _raise_without_data)
    if dtype == "Bool" and data.size:
        values: NDArray[np.unsignedinteger[Any]] = data if data.size == math.prod(shape) else data.view("<u4")
        if values.max() > 1:
            raise RecordError(f"{where} is Bool but contains {values.max()}; expected only 0 and 1")
        data = values.astype(np.uint8, copy=False)
    return RawTensor(dtype, shape, _Pieces(data))


class _Pieces:
    """The single piece of a tensor in memory.

    The object is small because a file can have many empty tensors.
    """

    __slots__ = ("_data",)

    def __init__(self, data: Blob) -> None:
        self._data = data

    def __call__(self) -> tuple[memoryview]:
        return (self._data.data,)


def iter_bytes(tensor: RawTensor) -> Iterator[memoryview]:
    """Yield the bytes of *tensor*. Raises `RecordError` if their number does not match its shape."""
    written = 0
    for piece in tensor.pieces():
        yield piece
        written += piece.nbytes
    if written != tensor.nbytes:
        raise RecordError(
            f"a {tensor.dtype} tensor of shape {list(tensor.shape)} takes {tensor.nbytes} bytes, but its "
            f"data has {written}"
        )


def _raise_without_data() -> Iterator[memoryview]:
    raise RecordError("the tensor was read without its data; read the file with keep_data=True")
