"""NumPy arrays of the numbers in MessagePack arrays: Burn until 0.13 wrote tensors as lists of millions.

Half-precision numbers are written as the bits of a float16, each in the fewest bytes, so that the widths
change from number to number.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

_TYPES = {
    0xCA: ">f4",
    0xCB: ">f8",
    0xCC: "u1",
    0xCD: ">u2",
    0xCE: ">u4",
    0xCF: ">u8",
    0xD0: "i1",
    0xD1: ">i2",
    0xD2: ">i4",
    0xD3: ">i8",
}
_FIX = 1
_FLOATS = frozenset({0xCA, 0xCB})


def _kind(byte: int) -> int:
    """Return *byte* if it is a number's marker, `_FIX` if it is the number itself, otherwise 0."""
    if byte < 0x80 or byte >= 0xE0:
        return _FIX
    return byte if byte in _TYPES else 0


def _width(kind: int) -> int:
    """Return the bytes of a number with its marker; 0 if *kind* is not a number."""
    return 1 + np.dtype(_TYPES[kind]).itemsize if kind in _TYPES else kind


KINDS = bytes(_kind(byte) for byte in range(256))
"""Kind of the number that each first byte starts; 0 if none."""
WIDTHS = bytes(_width(kind) for kind in KINDS)
"""Bytes of the number that each first byte starts; 0 if none."""
_KIND_OF = np.frombuffer(KINDS, np.uint8)
_INTEGER_WIDTHS = bytes(0 if kind in _FLOATS else width for kind, width in zip(KINDS, WIDTHS, strict=True))


class NumberArray:
    """The numbers at the start of an array of *size*, if all are integers or of one float type."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._filled = 0
        self._values: Numbers = np.empty(0, np.uint16)

    @property
    def missing(self) -> int:
        """Return how many numbers of the array were not added yet."""
        return self._size - self._filled

    @property
    def is_full(self) -> bool:
        """Return True if all elements of the array were added."""
        return not self.missing

    def array(self) -> Numbers:
        """Return the numbers that were added."""
        return self._values[: self._filled]

    def add(self, window: bytes) -> int:
        """Add the complete numbers at the beginning of *window* and return how many bytes they take.

        Return 0 if the next value is not a number, is truncated, or is of another type.
        """
        kind = KINDS[window[0]] if window else 0
        if not kind:
            return 0
        rows = min(len(window) // _width(kind), self.missing)
        values = _parse_uniform(window, kind, rows)
        used = len(values) * _width(kind)
        if len(values) < rows and kind not in _FLOATS:
            values, used = _parse_integers(window, self.missing)
        return used if len(values) and self._append(values) else 0

    def _append(self, values: Numbers) -> bool:
        if values.dtype.kind != "f":
            if int(values.max()) > np.iinfo(np.int64).max:
                return False
            values = _narrow_dtype(values)
        if not self._filled:
            # The operating system does not allocate pages of memory that are never written.
            self._values = np.empty(self._size, values.dtype)
        elif "f" in {self._values.dtype.kind, values.dtype.kind} and values.dtype != self._values.dtype:
            return False
        elif np.result_type(self._values, values) != self._values.dtype:
            self._values = self._values.astype(np.result_type(self._values, values))
        self._values[self._filled : self._filled + len(values)] = values
        self._filled += len(values)
        return True


def _parse_uniform(window: bytes, kind: int, rows: int) -> Numbers:
    """Return up to *rows* numbers at the beginning of *window*, as long as all are of *kind*."""
    width = _width(kind)
    table = np.frombuffer(window, np.uint8, rows * width).reshape(rows, width)
    same = _KIND_OF[table[:, 0]] == kind
    count = rows if same.all() else int(same.argmin())
    if kind == _FIX:
        return table[:count, 0].view(np.int8)
    values = table[:count, 1:].copy().view(_TYPES[kind])[:, 0]
    return values.astype(values.dtype.newbyteorder("="))


def _parse_integers(window: bytes, limit: int) -> tuple[Numbers, int]:
    """Return the integers of any width at the beginning of *window*, and how many bytes they take."""
    widths = window.translate(_INTEGER_WIDTHS)
    starts: list[int] = []
    position = 0
    while position < len(window) and len(starts) < limit:
        width = widths[position]
        if not width or position + width > len(window):
            break
        starts.append(position)
        position += width
    return _integers_at(np.frombuffer(window, np.uint8), np.array(starts, np.int64)), position


def _integers_at(window: NDArray[np.uint8], starts: NDArray[np.int64]) -> Numbers:
    """Return the integers that begin at *starts*; none if one exceeds 63 bits."""
    kinds = _KIND_OF[window[starts]]
    large = kinds == 0xCF
    if large.any() and (window[starts[large] + 1] >= 0x80).any():
        return np.empty(0, np.int64)
    values = np.empty(len(starts), np.int64)
    for kind in np.unique(kinds):
        here = starts[kinds == kind]
        if kind == _FIX:
            values[kinds == kind] = window[here].view(np.int8)
        else:
            places = here[:, None] + np.arange(1, _width(int(kind)))
            values[kinds == kind] = window[places].view(_TYPES[int(kind)])[:, 0]
    return values


def _narrow_dtype(values: Numbers) -> Numbers:
    """Return integers in 16, 32 or 64 bits, never in 8, because those would be taken for bytes."""
    low, high = int(values.min()), int(values.max())
    for candidate in (np.uint16, np.int32):
        if np.iinfo(candidate).min <= low and high <= np.iinfo(candidate).max:
            return values.astype(candidate)
    return values.astype(np.int64)
