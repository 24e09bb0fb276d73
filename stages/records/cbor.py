"""The part of CBOR (RFC 8949) that burnpack uses, in the shortest form as Burn writes it.

A caller requests values of the kind that must come next, so an untrusted file never determines which objects
are created.
"""

import struct
from collections.abc import Iterator

from stages.contracts.errors import RecordError
from stages.records.limits import MAX_DEPTH

Value = dict[str, "Value"] | list["Value"] | str | int | float | bool
UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
NAMES = (
    "an integer",
    "a negative integer",
    "bytes",
    "text",
    "an array",
    "a map",
    "a tag",
    "a float or boolean",
)
MAX_SKIPPED = 1 << 17
"""Values that one parser skips, which takes about a tenth of a second."""
FALSE, TRUE = 20, 21


def encode(value: Value) -> Iterator[bytes]:
    """Yield the bytes of *value* in pieces."""
    if isinstance(value, bool):
        yield _head(SIMPLE, TRUE if value else FALSE)
    elif isinstance(value, int):
        yield _head(UNSIGNED, value) if value >= 0 else _head(NEGATIVE, -1 - value)
    elif isinstance(value, float):
        yield _float(value)
    elif isinstance(value, str):
        data = value.encode()
        yield _head(TEXT, len(data)) + data
    elif isinstance(value, list):
        yield _head(ARRAY, len(value))
        for item in value:
            yield from encode(item)
    else:
        yield _head(MAP, len(value))
        for key, item in value.items():
            yield from encode(key)
            yield from encode(item)


def _head(kind: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([kind << 5 | argument])
    for width, (size, code) in enumerate(((1, "B"), (2, "H"), (4, "I"), (8, "Q"))):
        if argument < 1 << 8 * size:
            return struct.pack(">B" + code, kind << 5 | 24 + width, argument)
    raise RecordError(f"the number {argument} does not fit into 64 bits")


def _float(value: float) -> bytes:
    """Return *value* in the smallest width that preserves its bits."""
    exact = struct.pack(">d", value)
    for size, code in ((2, ">e"), (4, ">f")):
        try:
            short = struct.pack(code, value)
        except OverflowError:
            continue
        if struct.pack(">d", struct.unpack(code, short)[0]) == exact:
            return bytes([SIMPLE << 5 | 24 + size.bit_length() - 1]) + short
    return b"\xfb" + exact


class CborParser:
    """Parses the values in *data*, which begins at *offset* of the file *name*."""

    def __init__(self, data: bytes, name: str, *, offset: int = 0) -> None:
        self._data = data
        self.name = name
        self._begin = offset
        self._position = 0
        self._skipped = 0

    def count(self, kind: int, limit: int) -> int:
        """Return the number of the pairs of the next map, or of the items of the next array.

        Raises `RecordError` if it exceeds *limit*.
        """
        count = self._argument(kind)
        least = 2 * count if kind == MAP else count
        if count > limit or least > len(self._data) - self._position:
            raise self.error(
                f"{NAMES[kind]} of {count} is declared, but at most {min(limit, len(self._data))} are "
                "possible"
            )
        return count

    def text(self) -> str:
        """Return the next text."""
        size = self._argument(TEXT)
        try:
            return self._read(size).decode()
        except UnicodeDecodeError as error:
            raise self.error("a text is not valid UTF-8") from error

    def unsigned(self) -> int:
        """Return the next integer, 0 to 2^64 - 1."""
        return self._argument(UNSIGNED)

    def integer(self) -> int:
        """Return the next integer, with its sign."""
        return -1 - self._argument(NEGATIVE) if self.kind() == NEGATIVE else self._argument(UNSIGNED)

    def simple(self) -> bool | float:
        """Return the next boolean, or the next float of any width."""
        value = self._read(1)[0]
        if value in {SIMPLE << 5 | FALSE, SIMPLE << 5 | TRUE}:
            return value == SIMPLE << 5 | TRUE
        code = {0xF9: ">e", 0xFA: ">f", 0xFB: ">d"}.get(value)
        if code is None:
            raise self.error(f"expected a float or boolean, found byte {value:#04x}")
        number: float = struct.unpack(code, self._read(struct.calcsize(code)))[0]
        return number

    def kind(self) -> int:
        """Return the kind of the next value without reading it."""
        if self._position >= len(self._data):
            raise self.error("expected a value, found the end of the metadata")
        return self._data[self._position] >> 5

    def skip(self, depth: int = 0) -> None:
        """Skip one value of any kind, inside of *depth* others, without creating it."""
        self._skipped += 1
        if self._skipped > MAX_SKIPPED:
            raise self.error(f"more than {MAX_SKIPPED} values have unknown names")
        if depth > MAX_DEPTH:
            raise self.error(f"values are nested deeper than {MAX_DEPTH} levels")
        kind = self.kind()
        argument = self._argument(kind)
        if kind in {BYTES, TEXT}:
            self._read(argument)
        inside = {ARRAY: argument, MAP: 2 * argument, TAG: 1}.get(kind, 0)
        if inside > len(self._data) - self._position:
            raise self.error(
                f"{inside} values are declared, but {len(self._data) - self._position} bytes remain"
            )
        for _ in range(inside):
            self.skip(depth + 1)

    def finish(self) -> None:
        """Raise `RecordError` if bytes remain."""
        if self._position != len(self._data):
            raise self.error(f"{len(self._data) - self._position} bytes remain after the metadata")

    def error(self, what: str) -> RecordError:
        """Return a `RecordError` with the position in the file."""
        return RecordError(f"{self.name}, offset {self._begin + self._position}: {what}")

    def _argument(self, kind: int) -> int:
        if self.kind() != kind:
            raise self.error(f"expected {NAMES[kind]}, found {NAMES[self.kind()]}")
        low = self._data[self._position] & 31
        self._position += 1
        if low < 24:
            return low
        if low > 27:
            raise self.error("a length is indefinite or reserved, which Burn does not write")
        return int.from_bytes(self._read(1 << low - 24), "big")

    def _read(self, size: int) -> bytes:
        if size > len(self._data) - self._position:
            raise self.error(f"{size} bytes are declared, but {len(self._data) - self._position} remain")
        self._position += size
        return self._data[self._position - size : self._position]
