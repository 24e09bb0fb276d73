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
FLOATS = {2: ">e", 4: ">f", 8: ">d"}


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

    def entries(self, limit: int) -> int:
        """Return the number of pairs of the next map. Raises `RecordError` if it exceeds *limit*."""
        return self._count(MAP, limit, least=2)

    def items(self, limit: int) -> int:
        """Return the number of items of the next array. Raises `RecordError` if it exceeds *limit*."""
        return self._count(ARRAY, limit, least=1)

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

    def boolean(self) -> bool:
        """Return the next boolean."""
        value = self._read(1)[0]
        if value not in {SIMPLE << 5 | FALSE, SIMPLE << 5 | TRUE}:
            raise self.error(f"expected true or false, found byte {value:#04x}")
        return value == SIMPLE << 5 | TRUE

    def float(self) -> float:
        """Return the next float, of any width."""
        value = self._read(1)[0]
        width = {0xF9: 2, 0xFA: 4, 0xFB: 8}.get(value)
        if width is None:
            raise self.error(f"expected a float, found byte {value:#04x}")
        number: float = struct.unpack(FLOATS[width], self._read(width))[0]
        return number

    def kind(self) -> int:
        """Return the kind of the next value without reading it."""
        if self._position >= len(self._data):
            raise self.error("expected a value, found the end of the metadata")
        return self._data[self._position] >> 5

    def skip(self) -> None:
        """Skip one value of any kind without creating it."""
        open_counts = [1]
        while open_counts:
            if not open_counts[-1]:
                open_counts.pop()
                continue
            open_counts[-1] -= 1
            self._skipped += 1
            if self._skipped > MAX_SKIPPED:
                raise self.error(f"more than {MAX_SKIPPED} values have unknown names")
            inside = self._skip_head()
            if inside:
                open_counts.append(inside)
            if len(open_counts) > MAX_DEPTH:
                raise self.error(f"values are nested deeper than {MAX_DEPTH} levels")

    def finish(self) -> None:
        """Raise `RecordError` if bytes remain."""
        if self._position != len(self._data):
            raise self.error(f"{len(self._data) - self._position} bytes remain after the metadata")

    def error(self, what: str) -> RecordError:
        """Return a `RecordError` with the position in the file."""
        return RecordError(f"{self.name}, offset {self._begin + self._position}: {what}")

    def _skip_head(self) -> int:
        """Skip the head of a value, or a whole value without children; return the number of its children."""
        kind = self.kind()
        argument = self._argument(kind)
        if kind in {BYTES, TEXT}:
            self._read(argument)
        inside = {ARRAY: argument, MAP: 2 * argument, TAG: 1}.get(kind, 0)
        if inside > len(self._data) - self._position:
            raise self.error(
                f"{inside} values are declared, but {len(self._data) - self._position} bytes remain"
            )
        return inside

    def _count(self, kind: int, limit: int, *, least: int) -> int:
        count = self._argument(kind)
        if count > limit or count * least > len(self._data) - self._position:
            raise self.error(
                f"{NAMES[kind]} of {count} is declared, but at most {min(limit, len(self._data))} are "
                "possible"
            )
        return count

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
