"""The part of CBOR (RFC 8949) that burnpack uses, in the shortest form as Burn writes it.

Reading is by asking for what must come next, so a file from strangers never decides what is built.
"""

import struct
from collections.abc import Iterator

from stages.contracts.errors import RecordError

Value = dict[str, "Value"] | list["Value"] | str | int | float | bool
UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
NAMES = (
    "a whole number",
    "a negative number",
    "bytes",
    "text",
    "an array",
    "a map",
    "a tag",
    "a float or boolean",
)
MAX_DEPTH = 128
MAX_SKIPPED = 1 << 17
"""Values that one reader skips: about a tenth of a second."""
FALSE, TRUE = 20, 21
FLOATS = {2: ">e", 4: ">f", 8: ">d"}


def encode(value: Value) -> Iterator[bytes]:
    """The bytes of *value*, in pieces."""
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
    """The shortest width that gives the same bits again."""
    exact = struct.pack(">d", value)
    for size, code in ((2, ">e"), (4, ">f")):
        try:
            short = struct.pack(code, value)
        except OverflowError:
            continue
        if struct.pack(">d", struct.unpack(code, short)[0]) == exact:
            return bytes([SIMPLE << 5 | 24 + size.bit_length() - 1]) + short
    return b"\xfb" + exact


class Reader:
    """The values in *data*, one after the other; *offset* is where *data* begins in the file *name*."""

    def __init__(self, data: bytes, name: str, *, offset: int = 0) -> None:
        self._data = data
        self.name = name
        self._begin = offset
        self._at = 0
        self._skipped = 0

    def entries(self, limit: int) -> int:
        """How many pairs the map that comes next has. Raises `RecordError` for more than *limit*."""
        return self._count(MAP, limit, least=2)

    def items(self, limit: int) -> int:
        """How many items the array that comes next has."""
        return self._count(ARRAY, limit, least=1)

    def text(self) -> str:
        """The text that comes next."""
        size = self._argument(TEXT)
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self.error("text is no UTF-8") from error

    def unsigned(self) -> int:
        """The whole number that comes next, 0 to 2^64 - 1."""
        return self._argument(UNSIGNED)

    def integer(self) -> int:
        """The whole number that comes next, with its sign."""
        return -1 - self._argument(NEGATIVE) if self.kind() == NEGATIVE else self._argument(UNSIGNED)

    def boolean(self) -> bool:
        """The true or false that comes next."""
        value = self._take(1)[0]
        if value not in {SIMPLE << 5 | FALSE, SIMPLE << 5 | TRUE}:
            raise self.error(f"true or false is expected, not byte {value:#04x}")
        return value == SIMPLE << 5 | TRUE

    def float(self) -> float:
        """The number with a fraction that comes next, of any width."""
        value = self._take(1)[0]
        width = {0xF9: 2, 0xFA: 4, 0xFB: 8}.get(value)
        if width is None:
            raise self.error(f"a float is expected, not byte {value:#04x}")
        number: float = struct.unpack(FLOATS[width], self._take(width))[0]
        return number

    def kind(self) -> int:
        """The kind of what comes next, without taking it."""
        if self._at >= len(self._data):
            raise self.error("the metadata ends where a value is expected")
        return self._data[self._at] >> 5

    def skip(self) -> None:
        """Go past one value, whatever it is, without building it."""
        open_counts = [1]
        while open_counts:
            if not open_counts[-1]:
                open_counts.pop()
                continue
            open_counts[-1] -= 1
            self._skipped += 1
            if self._skipped > MAX_SKIPPED:
                raise self.error(f"more than {MAX_SKIPPED} values stand where a reader knows no name")
            inside = self._skip_head()
            if inside:
                open_counts.append(inside)
            if len(open_counts) > MAX_DEPTH:
                raise self.error(f"values are nested deeper than {MAX_DEPTH} levels")

    def finish(self) -> None:
        """Raises `RecordError` where bytes are left."""
        if self._at != len(self._data):
            raise self.error(f"{len(self._data) - self._at} bytes are left after the metadata")

    def error(self, what: str) -> RecordError:
        """A `RecordError` that says where in the file the reader stands."""
        return RecordError(f"{self.name}, offset {self._begin + self._at}: {what}")

    def _skip_head(self) -> int:
        """Go past the beginning of a value (a short one is then past); how many values lie inside."""
        kind = self.kind()
        argument = self._argument(kind)
        if kind in {BYTES, TEXT}:
            self._take(argument)
        inside = {ARRAY: argument, MAP: 2 * argument, TAG: 1}.get(kind, 0)
        if inside > len(self._data) - self._at:
            raise self.error(f"{inside} values are declared, {len(self._data) - self._at} bytes are left")
        return inside

    def _count(self, kind: int, limit: int, *, least: int) -> int:
        count = self._argument(kind)
        if count > limit or count * least > len(self._data) - self._at:
            raise self.error(
                f"{NAMES[kind]} of {count} is declared, {min(limit, len(self._data))} are possible"
            )
        return count

    def _argument(self, kind: int) -> int:
        if self.kind() != kind:
            raise self.error(f"{NAMES[kind]} is expected, not {NAMES[self.kind()]}")
        low = self._data[self._at] & 31
        self._at += 1
        if low < 24:
            return low
        if low > 27:
            raise self.error("a length that is open or reserved, which Burn does not write")
        return int.from_bytes(self._take(1 << low - 24), "big")

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise self.error(f"{size} bytes are declared, {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]
