"""Reads JSON that may come from a stranger: long lists of numbers never become objects one by one."""

import json
import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob, ByteReader
from stages.records.limits import ADVICE, Limits, ValueCounts
from stages.records.messagepack.reader import NUMBER_KEYS, Skipped
from stages.records.record_tree import Tree

Numbers = NDArray[Any]

MAX_DEPTH = 128
_NODE = 200
"""Bytes of memory that a map, a list or a scalar takes, numbers in long lists not counted."""
MAX_TEXT = 1 << 20
MAX_SIZE = 1 << 32
"""Bytes of text, below which a record in JSON has to stay."""
SHORT = 16
"""Flat lists up to this length stay lists."""
MIXED = 1024
"""Flat lists of numbers beside other things have at most this length."""
_CHUNK = 1 << 18
"""Characters of a list that are looked at once."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_FLAT = re.compile(rb"\[[-+0-9.eE,a-u \t\n\r]*\]")
"""A list that can have numbers, true, false and null in it only."""
_WORDS = {b"true": True, b"fals": False, b"null": None}
_WORD = re.compile(rb"true|false|null")


def memory_needed(counts: ValueCounts, content: int) -> int:
    """Return the memory for small values that *content* bytes need beyond what their length allows."""
    return _NODE * (counts.values + counts.text // 64) - content


def decode(source: ByteReader, *, keep_data: bool = True) -> Tree:
    """The tree in *source*, which is one JSON value and nothing after it.

    A long list called ``bytes`` is a blob, without *keep_data* each is a `Skipped`; other long lists of
    numbers are arrays. Raises `RecordError` for anything that serde_json would not read.
    """
    # gzip tells a length modulo 4 GiB only: the least it can be is it, or what follows is refused later
    size = source.remaining() % MAX_SIZE
    return JsonReader(source.read_array(size), source.name, limits=source.limits, keep_data=keep_data).value()


class JsonReader:
    """One JSON value in memory, and nothing after it."""

    def __init__(self, data: Blob, name: str, *, limits: Limits, keep_data: bool) -> None:
        """*name* is the file's, for messages."""
        self._data = data
        self._bytes = data.data
        self._name = name
        self._keep_data = keep_data
        self._position = 0
        self._values = 0
        self._limits = limits
        self._room = limits.memory + len(data)

    def value(self) -> Tree:
        """The value. Raises `RecordError` where the text is not one JSON value."""
        node = self._node("", 0)
        self._peek()
        if self._position != len(self._data):
            raise self._error("expected the end of the file")
        return node

    def _node(self, key: str, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels")
        self._count(1)
        sign = self._peek()
        if sign == b"{":
            return self._map(depth)
        if sign == b"[":
            flat = _FLAT.match(self._bytes, self._position)
            return self._flat(flat.end(), key) if flat else self._list(depth)
        if sign == b'"':
            return self._string()
        if word := _WORD.match(self._bytes, self._position):
            self._position = word.end()
            return _WORDS[word[0][:4]]
        return self._number()

    def _map(self, depth: int) -> dict[str, Tree]:
        node: dict[str, Tree] = {}
        self._position += 1
        if self._peek() == b"}":
            self._position += 1
            return node
        while True:
            if self._peek() != b'"':
                raise self._error("expected a name in quotes")
            key = self._string()
            if key in node:
                raise self._error(f"the name {key[:200]!r} is there twice in one map")
            self._expect(b":")
            node[key] = self._node(key, depth + 1)
            if self._expect(b",", b"}") == b"}":
                return node

    def _list(self, depth: int) -> list[Tree]:
        node: list[Tree] = []
        self._position += 1
        while True:
            node.append(self._node("", depth + 1))
            if self._expect(b",", b"]") == b"]":
                return node

    def _flat(self, end: int, key: str) -> Tree:
        """The list that ends at *end*: of numbers, true, false and null."""
        start, self._position = self._position + 1, end
        is_blob = key == "bytes"
        if key not in NUMBER_KEYS:
            self._check_length(start, end)
        if end - start <= SHORT and (self._keep_data or not is_blob):
            return self._plain(self._parsed(start, end - 1))
        length = self._length(start, end)
        if is_blob and (length > SHORT or not self._keep_data):
            node = self._blob(start, end - 1, length)
            if node is not None:
                return node
        if length > MIXED:
            return self._array(start, end - 1, length)
        values = [value for part in self._parts(start, end - 1) for value in part]
        return self._numbers(values) if length > SHORT and are_alike(values) else self._plain(values)

    def _check_length(self, start: int, end: int) -> None:
        """Raise `RecordError` for a list that is not a tensor's and longer than all such lists may be."""
        if end - start > 2 * self._limits.numbers and self._length(start, end) > self._limits.numbers:
            raise self._error(
                f"a list of more than {self._limits.numbers} numbers that is not a tensor's; {ADVICE}", start
            )

    def _length(self, start: int, end: int) -> int:
        """Return how many elements the flat list from *start* to *end* has."""
        return 1 + sum(
            int(np.count_nonzero(self._data[cut : min(cut + _CHUNK, end)] == ord(",")))
            for cut in range(start, end, _CHUNK)
        )

    def _plain(self, values: list[Any]) -> list[Any]:
        """*values* as they are."""
        self._count(len(values))
        for value in values:
            self._check(value)
        return values

    def _blob(self, start: int, end: int, length: int) -> Blob | Skipped | None:
        """The numbers as bytes; None where they are not from 0 to 255."""
        blob = np.empty(length if self._keep_data else 0, np.uint8)
        filled = 0
        for part in self._parts(start, end):
            try:
                values = bytes(part)
            except (ValueError, TypeError):
                return None
            if self._keep_data:
                blob[filled : filled + len(values)] = np.frombuffer(values, np.uint8)
            filled += len(values)
        return blob[:filled] if self._keep_data else Skipped(filled)

    def _parts(self, start: int, end: int) -> Any:
        """The values of a flat list from *start* to *end*, a few at a time."""
        while start < end:
            cut = min(start + _CHUNK, end)
            if cut < end:
                comma = bytes(self._bytes[start:cut]).rfind(b",")
                if comma < 0:
                    raise self._error("a number is longer than any number", start)
                cut = start + comma
            values = self._parsed(start, cut)
            if (cut < end) and not values:
                raise self._error("expected a number", start)
            yield values
            start = cut + 1
            if start >= end and cut < end:
                raise self._error("expected a number", cut)

    def _parsed(self, start: int, end: int) -> list[Any]:
        try:
            values: list[Any] = json.loads(b"[" + bytes(self._bytes[start:end]) + b"]")
        except (ValueError, RecursionError) as error:
            raise self._error(f"no list of numbers: {error!s:.200}", start) from error
        return values

    def _array(self, start: int, end: int, length: int) -> Numbers:
        """The numbers of a long list."""
        array, filled = None, 0
        for part in self._parts(start, end):
            numbers = self._numbers(part)
            try:
                dtype = numbers.dtype if array is None else widen_dtype(array, numbers)
            except ValueError as error:
                raise self._error(str(error)) from error
            if array is None:
                self._spend(length * dtype.itemsize)
                array = np.empty(length, dtype)
            elif dtype != array.dtype:
                self._spend(length * dtype.itemsize)  # beside the narrower one, which goes only then
                array = array.astype(dtype)
            array[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
        return np.empty(0) if array is None else array[:filled]

    def _spend(self, memory: int) -> None:
        self._room -= memory
        if self._room < 0:
            raise self._error(
                f"its values would take more memory than a file of this length may ask for; {ADVICE}"
            )

    def _numbers(self, values: list[Any]) -> Numbers:
        try:
            return to_array(values)
        except ValueError as error:
            raise self._error(str(error)) from error

    def _check(self, number: Any) -> None:
        """Raises `RecordError` for a number that Rust has no type for."""
        if type(number) is int and not -(1 << 63) <= number < 1 << 64:
            raise self._error("a number is larger than 64 bits")
        if type(number) is float and not math.isfinite(number):
            raise self._error("a number is larger than any float")

    def _string(self) -> str:
        match = _STRING.match(self._bytes, self._position, self._position + MAX_TEXT)
        if match is None:
            raise self._error(f"expected text in quotes, of at most {MAX_TEXT} bytes and no line break")
        try:
            text: str = json.loads(match[0])
            text.encode()  # half of a pair is no character
        except ValueError as error:
            raise self._error(f"no text in UTF-8: {error}") from error
        self._count(len(text) // 64)  # a long one takes up to 4 bytes a character
        self._position = match.end()
        return text

    def _number(self) -> int | float:
        match = _NUMBER.match(self._bytes, self._position)
        if match is None:
            raise self._error("expected a value")
        try:
            number = float(match[0]) if match[1] or match[2] else int(match[0])
        except ValueError as error:
            raise self._error(f"no number: {error}") from error
        self._check(number)
        self._position = match.end()
        return number

    def _expect(self, *signs: bytes) -> bytes:
        sign = self._peek()
        if sign not in signs:
            raise self._error(f"expected {' or '.join(sign.decode() for sign in signs)}")
        self._position += 1
        return sign

    def _peek(self) -> bytes:
        """The next byte that is no space; nothing at the end."""
        space = _SPACE.match(self._bytes, self._position)
        self._position = space.end() if space else self._position
        return bytes(self._bytes[self._position : self._position + 1])

    def _count(self, values: int) -> None:
        self._values += values
        self._spend(_NODE * values)
        if self._values > self._limits.values:
            raise self._error(
                f"over {self._limits.values} values outside lists of numbers in so small a file; {ADVICE}"
            )

    def _error(self, what: str, position: int | None = None) -> RecordError:
        position = self._position if position is None else position
        found = bytes(self._bytes[position : position + 20])
        return RecordError(f"{self._name}, offset {position}: {what}, there is {found!r}")


def are_alike(values: list[Any]) -> bool:
    """Whether they are all numbers, or all bools."""
    kinds = set(map(type, values))
    return kinds <= {int, float} or kinds == {bool}


def to_array(values: list[Any]) -> Numbers:
    """*values*, of which there are some, as an array. Raises `ValueError` where one does not fit any type."""
    if not are_alike(values):
        raise ValueError("a long list of values that are not all numbers or all bools")
    try:
        array = np.array(values)
    except OverflowError as error:
        raise ValueError(f"a number is larger than 64 bits: {error}") from error
    has_float = array.dtype.kind == "f" and float in set(map(type, values))
    if array.dtype == object or (array.dtype.kind == "f" and not has_float):
        raise ValueError("a number is larger than 64 bits")
    if has_float and not np.isfinite(array).all():
        raise ValueError("a number is larger than any float")
    return _narrowed(array)


def widen_dtype(array: Numbers, numbers: Numbers) -> np.dtype[Any]:
    """The type that holds *array* and *numbers* too. Raises `ValueError` where there is none."""
    kinds = {array.dtype.kind, numbers.dtype.kind}
    dtype = np.result_type(array, numbers)
    if "b" in kinds and len(kinds) > 1:
        raise ValueError("a list of numbers and bools")
    if dtype.kind == "f" and "f" not in kinds:
        raise ValueError("a number is larger than 64 bits")
    return dtype


def _narrowed(array: Numbers) -> Numbers:
    if array.dtype != np.int64:
        return array
    low, high = array.min(), array.max()
    for kind in (np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array
