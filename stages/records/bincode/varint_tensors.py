"""Tensors in bincode of Burn 0.13 and earlier: sequences of numbers whose type only the metadata declares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob, ByteReader
from stages.records.dtypes import FLOATS
from stages.records.record_tree import Metadata

MARKED = {251: 2, 252: 4, 253: 8}
"""First bytes that are markers, with the bytes of the number after each."""
CHUNK = 1 << 16
_FIXED = {"f32": ("F32", 4), "f64": ("F64", 8), "u8": ("U8", 1), "i8": ("I8", 1), "bool": ("Bool", 1)}
_VARIABLE = {
    "f16": "F16",
    "bf16": "BF16",
    **{f"{k}{n}": f"{k}{n}".upper() for k in "ui" for n in (16, 32, 64)},
}
_BITS = {"F16": "<u2", "BF16": "<u2", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
_SIGNED = {"I16": "<i2", "I32": "<i4", "I64": "<i8"}


class VarintReader:
    """Reads the numbers of a tensor like one of dtype *like*: floats, integers or Bool."""

    def __init__(self, source: ByteReader, metadata: Metadata, like: str) -> None:
        named = metadata.float if like in FLOATS else metadata.int
        name = "bool" if like == "Bool" else named.rsplit("::", 1)[-1]
        if name not in _FIXED and name not in _VARIABLE:
            raise RecordError(
                f"{source.name}: its metadata declares the unknown type {name[:100]!r} for the numbers of a "
                "tensor"
            )
        self._source = source
        self.dtype, self.least_bytes = _FIXED[name] if name in _FIXED else (_VARIABLE[name], 1)
        self._is_fixed = name in _FIXED

    def read(self, count: int, name: str, *, keep_data: bool) -> Blob | None:
        """Return the next *count* numbers as the bytes of a tensor; None without *keep_data*."""
        if not self._is_fixed:
            values = self._read_varints(count, name)
            return values.view(np.uint8) if keep_data else None
        if keep_data:
            return self._source.read_array(count * self.least_bytes)
        self._source.skip(count * self.least_bytes)
        return None

    def _read_varints(self, count: int, name: str) -> NDArray[Any]:
        values = np.empty(count, _BITS.get(self.dtype) or _SIGNED[self.dtype])
        filled = 0
        while filled < count:
            numbers, size = self._parse(self._source.peek(CHUNK), count - filled, name)
            self._source.skip(size)
            limits = np.iinfo(values.dtype)
            if not limits.min <= min(numbers) <= max(numbers) <= limits.max:
                raise RecordError(
                    f"{self._source.name}: {name} has numbers that are too large for {self.dtype}"
                )
            values[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
        return values

    def _parse(self, data: bytes, limit: int, name: str) -> tuple[list[int], int]:
        """Return up to *limit* numbers at the beginning of *data*, at least one, and the bytes they take."""
        numbers: list[int] = []
        position = 0
        while position < len(data) and len(numbers) < limit:
            first = data[position]
            end = position + 1 + MARKED.get(first, 0)
            if first > max(MARKED):
                raise RecordError(f"{self._source.name}: {name} has byte {first}, which starts no number")
            if end > len(data):
                break
            number = first if end == position + 1 else int.from_bytes(data[position + 1 : end], "little")
            numbers.append(from_zigzag(number) if self.dtype in _SIGNED else number)
            position = end
        if not numbers:
            raise RecordError(f"{self._source.name}: {name} is truncated")
        return numbers, position


def from_zigzag(number: int) -> int:
    """Return the signed integer that Burn writes as *number*: 0, 1, 2, 3 become 0, -1, 1, -2."""
    return number // 2 if number % 2 == 0 else -(number + 1) // 2
