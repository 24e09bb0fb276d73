"""The numbers of a MessagePack array as numpy arrays: Burn until 0.13 wrote tensors as lists of millions.

Half precision stands there as the bits of a float16, each in as few bytes as hold it, so that the widths
change from number to number.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
FEWEST = 16
"""Numbers an array must have to come as one."""

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
    """*byte* where it is a number's marker, `_FIX` where it is the number itself, else 0."""
    if byte < 0x80 or byte >= 0xE0:
        return _FIX
    return byte if byte in _TYPES else 0


def _width(kind: int) -> int:
    """Bytes of a number and its marker, 0 for what is no number."""
    return 1 + np.dtype(_TYPES[kind]).itemsize if kind in _TYPES else kind


KINDS = bytes(_kind(byte) for byte in range(256))
"""For each first byte what kind of number it begins; 0 for what is none."""
WIDTHS = bytes(_width(kind) for kind in KINDS)
"""For each first byte the bytes that its number takes; 0 for what is none."""
_KIND_OF = np.frombuffer(KINDS, np.uint8)
_INTEGER_WIDTHS = bytes(0 if kind in _FLOATS else width for kind, width in zip(KINDS, WIDTHS, strict=True))


class NumberRun:
    """Collects the numbers that an array of *size* begins with, while they are of one sort."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._filled = 0
        self._values: Numbers = np.empty(0, np.uint16)

    @property
    def left(self) -> int:
        """How many are missing."""
        return self._size - self._filled

    @property
    def full(self) -> bool:
        """Whether the array was nothing but numbers of one sort."""
        return not self.left

    def array(self) -> Numbers:
        """The numbers so far."""
        return self._values[: self._filled]

    def add(self, window: bytes) -> int:
        """Take the whole numbers at the beginning of *window*; how many bytes they were.

        0 where something else comes next, or where the number is cut or of another sort.
        """
        kind = KINDS[window[0]] if window else 0
        if not kind:
            return 0
        rows = min(len(window) // _width(kind), self.left)
        values = _uniform(window, kind, rows)
        used = len(values) * _width(kind)
        if len(values) < rows and kind not in _FLOATS:
            values, used = _mixed(window, self.left)
        return used if len(values) and self._put(values) else 0

    def _put(self, values: Numbers) -> bool:
        if values.dtype.kind != "f":
            if int(values.max()) > np.iinfo(np.int64).max:
                return False
            values = _narrowed(values)
        if not self._filled:
            # Pages of memory that no number reaches are never taken.
            self._values = np.empty(self._size, values.dtype)
        elif "f" in {self._values.dtype.kind, values.dtype.kind} and values.dtype != self._values.dtype:
            return False
        elif np.result_type(self._values, values) != self._values.dtype:
            self._values = self._values.astype(np.result_type(self._values, values))
        self._values[self._filled : self._filled + len(values)] = values
        self._filled += len(values)
        return True


def _uniform(window: bytes, kind: int, rows: int) -> Numbers:
    """The numbers that *window* begins with, as long as all are of *kind*; *rows* at most."""
    width = _width(kind)
    table = np.frombuffer(window, np.uint8, rows * width).reshape(rows, width)
    same = _KIND_OF[table[:, 0]] == kind
    count = rows if same.all() else int(same.argmin())
    if kind == _FIX:
        return table[:count, 0].view(np.int8)
    values = table[:count, 1:].copy().view(_TYPES[kind])[:, 0]
    return values.astype(values.dtype.newbyteorder("="))


def _mixed(window: bytes, limit: int) -> tuple[Numbers, int]:
    """The whole numbers of any width that *window* begins with, and how many bytes they are."""
    widths = window.translate(_INTEGER_WIDTHS)
    starts: list[int] = []
    at = 0
    while at < len(window) and len(starts) < limit:
        width = widths[at]
        if not width or at + width > len(window):
            break
        starts.append(at)
        at += width
    return _gathered(np.frombuffer(window, np.uint8), np.array(starts, np.int64)), at


def _gathered(window: NDArray[np.uint8], starts: NDArray[np.int64]) -> Numbers:
    """The integers that begin at *starts*."""
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


def _narrowed(values: Numbers) -> Numbers:
    """Integers in 16, 32 or 64 bits, never in 8: those would be taken for bytes."""
    low, high = int(values.min()), int(values.max())
    for candidate in (np.uint16, np.int32):
        if np.iinfo(candidate).min <= low and high <= np.iinfo(candidate).max:
            return values.astype(candidate)
    return values.astype(np.int64)
