"""MessagePack reader for untrusted input: decodes one value in bounded memory."""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

import numpy as np

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob, ByteReader
from stages.records.limits import ADVICE, ValueCounts
from stages.records.messagepack.number_arrays import FEWEST, WIDTHS, NumberRun
from stages.records.record_tree import Tree

DEEPEST = 128
"""Containers inside one another."""
_NODE, _ENTRY = 58, 120
"""Bytes of memory that a small value takes, and that an entry of a map takes beside its value."""
_OBJECT, _BLOB = 120, 240
"""Bytes of memory that a container takes beside, and an array of bytes."""
NUMBER_KEYS = frozenset({"bytes", "value"})
"""Keys under which a list of numbers may be a tensor's: Burn until 0.13 wrote ``value``."""
_SMALL = (int, float, str, type(None))
_WINDOW = 1 << 16

_SCALARS = {
    marker: Struct(f">{code}")
    for marker, code in zip(
        (0xCA, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3), "fdBHIQbhiq", strict=True
    )
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS = {marker: Struct(f">{code}") for marker, code in zip(range(0xD9, 0xE0), "BHIHIHI", strict=True)}
_BINARIES = {marker: Struct(f">{code}") for marker, code in zip((0xC4, 0xC5, 0xC6), "BHI", strict=True)}


@dataclass(frozen=True)
class Skipped:
    """Stands where bytes stood that were not kept."""

    size: int


def memory_needed(counts: ValueCounts, content: int) -> int:
    """Return the memory for small values that *content* bytes need beyond what their length allows."""
    values = _NODE * counts.values + _ENTRY * counts.keys + _OBJECT * counts.containers
    return values + _BLOB * counts.tensors + counts.text - 2 * content


def decode(source: ByteReader, *, keep_data: bool = True) -> Tree:
    """The one value that *source* goes on with; what follows it is left there.

    Bytes come as `Blob`, or without *keep_data* as `Skipped`. An array of `FEWEST` numbers or more may come
    as a numpy array: of float32 or float64, or of integers in a type that holds them (never uint8).
    Raises `RecordError` for what is cut, not MessagePack, or nothing that a record holds.
    """
    return _Reader(source, source.read_array if keep_data else None).value(0)


class _Reader:
    """What has been taken from the source and not used yet is always part of the value."""

    def __init__(self, source: ByteReader, blob: Callable[[int], Blob] | None) -> None:
        self._source = source
        self._blob = blob
        self._held = b""
        self._at = 0
        self._path: list[str | int] = []
        self._room = source.limits.memory + 2 * source.remaining()
        self._values = source.limits.values

    def value(self, depth: int) -> Tree:
        marker = self._take(1)[0]
        self._spend(_NODE)
        self._count(1)
        if marker < 0x80:
            return marker
        if marker >= 0xE0:
            return marker - 0x100
        if marker in _SCALARS:
            return self._unpacked(_SCALARS[marker])
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker in _BINARIES:
            return self._data(self._unpacked(_BINARIES[marker]))
        if marker < 0xC0 or marker in _LENGTHS:
            return self._sized(marker, depth)
        raise self._wrong(f"the byte {marker:#04x} begins nothing that a record may hold")

    def _sized(self, marker: int, depth: int) -> Tree:
        """A text, an array or a map, all of which may be short enough to have their length in *marker*."""
        size = self._unpacked(_LENGTHS[marker]) if marker in _LENGTHS else marker & 0x0F
        if marker < 0x90 or marker >= 0xDE:
            return self._map(size, depth + 1)
        if marker < 0xA0 or marker >= 0xDC:
            return self._array(size, depth + 1)
        return self._text(marker & 0x1F if marker < 0xC0 else size)

    def _map(self, size: int, depth: int) -> dict[str, Tree]:
        self._enter(2 * size, "map", depth)
        node: dict[str, Tree] = {}
        self._path.append("")
        for _ in range(size):
            key = self._key()
            if key in node:
                raise self._wrong(f"the key {key!r} stands twice in one map")
            self._path[-1] = key
            node[key] = self.value(depth)
        self._path.pop()
        return node

    def _key(self) -> str:
        marker = self._take(1)[0]
        self._spend(_ENTRY)
        self._count(1)
        if 0xA0 <= marker < 0xC0:
            return self._text(marker & 0x1F)
        if 0xD9 <= marker <= 0xDB:
            return self._text(self._unpacked(_LENGTHS[marker]))
        raise self._wrong(f"a key begins with {marker:#04x}, where a text was expected")

    def _array(self, size: int, depth: int) -> Tree:
        self._enter(size, "array", depth)
        values: list[Tree] = []
        if size >= FEWEST:
            self._hold(1)
            if WIDTHS[self._held[self._at]]:
                self._check_length(size)
                run = self._run(size)
                if run.full:
                    return run.array()
                numbers = run.array()
                self._spend(_NODE * len(numbers))
                self._count(len(numbers))
                values = numbers.tolist()
        self._path.append(0)
        for index in range(len(values), size):
            self._path[-1] = index
            values.append(self.value(depth))
            if isinstance(values[-1], _SMALL):
                self._hold(min(size - index - 1, _WINDOW))
        self._path.pop()
        return values

    def _check_length(self, size: int) -> None:
        """Raise `RecordError` for an array that is not a tensor's and longer than all such arrays may be."""
        most = self._source.limits.numbers
        if size > most and (not self._path or self._path[-1] not in NUMBER_KEYS):
            raise self._wrong(f"an array of {size} numbers that is not a tensor's, at most {most}; {ADVICE}")

    def _run(self, size: int) -> NumberRun:
        """The numbers an array of *size* begins with; it takes only bytes that must belong to the array."""
        run = NumberRun(size)
        while not run.full:
            self._hold(1)
            held = len(self._held) - self._at
            least = run.left + max(WIDTHS[self._held[self._at]] - 1, 0)
            if held < min(least, _WINDOW):
                more = self._source.read(min(least, _WINDOW) - held)
                self._held, self._at = self._held[self._at :] + more, 0
            used = run.add(self._held[self._at :] if self._at else self._held)
            self._at += used
            if not used:
                break
        return run

    def _text(self, size: int) -> str:
        data = self._take(size)
        self._spend(size)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            what = f"{data[:40]!r} is no UTF-8: {error.reason} at its byte {error.start}"
            raise self._wrong(what) from error

    def _data(self, size: int) -> Blob | Skipped:
        self._spend(_BLOB)
        held = min(size, len(self._held) - self._at)
        if self._blob is None:
            self._at += held
            self._source.skip(size - held)
            return Skipped(size)
        if not held:
            return self._blob(size)
        begin = np.frombuffer(self._take(held), np.uint8)
        return np.concatenate([begin, self._blob(size - held)])

    def _enter(self, least: int, kind: str, depth: int) -> None:
        self._spend(_OBJECT)
        if depth > DEEPEST:
            raise self._wrong(f"this {kind} is nested deeper than {DEEPEST}")
        left = self._source.remaining() + len(self._held) - self._at
        if least > left:
            raise self._wrong(f"this {kind} declares at least {least} bytes, {left} are left")

    def _spend(self, memory: int) -> None:
        self._room -= memory
        if self._room < 0:
            raise self._wrong(
                f"its small values would take more memory than a file of this length may ask for; {ADVICE}"
            )

    def _count(self, values: int) -> None:
        self._values -= values
        if self._values < 0:
            raise self._wrong(
                f"more than {self._source.limits.values} small values in a file of this size; {ADVICE}"
            )

    def _hold(self, size: int) -> None:
        """Have *size* bytes at hand where there are none; they must be known to belong to the value."""
        if self._at == len(self._held):
            self._held, self._at = self._source.read(size), 0

    def _take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at <= len(self._held):
            return self._held[begin : self._at]
        begun = self._held[begin:]
        self._held, self._at = b"", 0
        return begun + self._source.read(size - len(begun))

    def _unpacked(self, form: Struct) -> int:
        number: int = form.unpack(self._take(form.size))[0]
        return number

    def _wrong(self, what: str) -> RecordError:
        offset = self._source.offset - len(self._held) + self._at
        where = f" (in {'.'.join(map(str, self._path))})" if self._path else ""
        return RecordError(f"{self._source.name}, offset {offset}{where}: {what}")
