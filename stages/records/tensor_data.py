"""The data of tensors in a file: one after the other in a data section, or as lists of numbers.

Burnpack and safetensors have a data section, in which a header declares the positions; bincode uses the
checks of a single tensor. Burn until 0.13 wrote tensors as lists of millions of numbers to MessagePack and
JSON. The types of such a list are small because a number of one byte in a file must not take eight bytes of
memory.
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

Numbers = NDArray[Any]
"""An array of numbers or bools of any type, (N,)."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A header's entry for a tensor whose bytes are at *start* to *end* in the data section."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    width: int = 0
    """Bytes of one element in the file, if the dtype does not determine them; 0 otherwise."""


def are_sizes(node: Any) -> bool:
    """Return whether *node*, from a file, is a list or a tuple of integers of at least 0."""
    return isinstance(node, list | tuple) and all(type(size) is int and size >= 0 for size in node)


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
