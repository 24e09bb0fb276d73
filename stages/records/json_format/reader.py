"""JSON reader for untrusted input: long lists of numbers never become Python objects one by one."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob, ByteReader
from stages.records.limits import ADVICE, MAX_DEPTH, Limits, ValueCounts
from stages.records.messagepack.reader import NUMBER_KEYS, Skipped
from stages.records.record_tree import Tree

Numbers = NDArray[Any]

_VALUE_MEMORY = 200
"""Bytes of memory of a map, a list or a scalar, numbers in long lists excluded."""
MAX_TEXT = 1 << 20
"""Bytes of one text, with its quotes."""
MAX_SIZE = 1 << 32
"""Bytes of a JSON file; the size must be smaller."""
MAX_PLAIN_LIST = 16
"""Length up to which a list of numbers is returned as a list."""
MAX_MIXED_LIST = 1024
"""Length of a list that mixes numbers with bools or null."""
_CHUNK = 1 << 18
"""Characters of a list that are parsed at a time."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_FLAT = re.compile(rb"\[[-+0-9.eE,a-u \t\n\r]*\]")
"""A list that can contain only numbers, true, false and null."""
_WORDS = {b"true": True, b"fals": False, b"null": None}
_WORD = re.compile(rb"true|false|null")


def memory_needed(counts: ValueCounts, content: int) -> int:
    """Return the memory for small values beyond what the length of *content* bytes allows."""
    return _VALUE_MEMORY * (counts.values + counts.text // 64) - content


def decode(source: ByteReader, *, keep_data: bool = True) -> Tree:
    """Return the tree in *source*, which must be one JSON value.

    A long list with the key ``bytes`` is returned as a blob, or without *keep_data* as a `Skipped`; other
    long lists of numbers are returned as arrays. Raises `RecordError` for input that serde_json would refuse.
    """
    # Gzip declares a length modulo 4 GiB only: read the smallest possible length; finish() checks the rest.
    size = source.remaining() % MAX_SIZE
    return JsonParser(source.read_array(size), source.name, limits=source.limits, keep_data=keep_data).value()


class JsonParser:
    """Parses one JSON value in memory, with no text after it."""

    def __init__(self, data: Blob, name: str, *, limits: Limits, keep_data: bool) -> None:
        """*name* is the name of the file, for messages."""
        self._data = data
        self._bytes = data.data
        self._name = name
        self._keep_data = keep_data
        self._position = 0
        self._values = 0
        self._limits = limits
        self._memory_left = limits.memory + len(data)

    def value(self) -> Tree:
        """Return the value. Raises `RecordError` if the text is not one JSON value."""
        node = self._value("", 0)
        self._peek()
        if self._position != len(self._data):
            raise self._error("expected the end of the file")
        return node

    def _value(self, key: str, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH} levels")
        self._count_values(1)
        sign = self._peek()
        if sign == b"{":
            return self._map(depth)
        if sign == b"[":
            flat = _FLAT.match(self._bytes, self._position)
            return self._flat_list(flat.end(), key) if flat else self._list(depth)
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
                raise self._error(f"duplicate name {key[:200]!r} in a map")
            self._expect(b":")
            node[key] = self._value(key, depth + 1)
            if self._expect(b",", b"}") == b"}":
                return node

    def _list(self, depth: int) -> list[Tree]:
        node: list[Tree] = []
        self._position += 1
        while True:
            node.append(self._value("", depth + 1))
            if self._expect(b",", b"]") == b"]":
                return node

    def _flat_list(self, end: int, key: str) -> Tree:
        """Return the list of numbers, true, false and null that ends at *end*."""
        start, self._position = self._position + 1, end
        is_blob = key == "bytes"
        if key not in NUMBER_KEYS:
            self._check_length(start, end)
        if end - start <= MAX_PLAIN_LIST and (self._keep_data or not is_blob):
            return self._check_list(self._parse_slice(start, end - 1))
        length = self._length(start, end)
        if is_blob and (length > MAX_PLAIN_LIST or not self._keep_data):
            node = self._blob(start, end - 1, length)
            if node is not None:
                return node
        if length > MAX_MIXED_LIST:
            return self._array(start, end - 1, length)
        values = [value for part in self._iter_slices(start, end - 1) for value in part]
        is_array = length > MAX_PLAIN_LIST and are_alike(values)
        return self._to_array(values) if is_array else self._check_list(values)

    def _check_length(self, start: int, end: int) -> None:
        """Raise `RecordError` for a list that is not a tensor's and is longer than the limit."""
        if end - start > 2 * self._limits.numbers and self._length(start, end) > self._limits.numbers:
            raise self._error(
                f"a list outside tensors has more than {self._limits.numbers} numbers; {ADVICE}", start
            )

    def _length(self, start: int, end: int) -> int:
        """Return the number of elements of the flat list from *start* to *end*."""
        return 1 + sum(
            int(np.count_nonzero(self._data[cut : min(cut + _CHUNK, end)] == ord(",")))
            for cut in range(start, end, _CHUNK)
        )

    def _check_list(self, values: list[Any]) -> list[Any]:
        """Return *values* after checking each."""
        self._count_values(len(values))
        for value in values:
            self._check_range(value)
        return values

    def _blob(self, start: int, end: int, length: int) -> Blob | Skipped | None:
        """Return the numbers as bytes, or None if they are not all from 0 to 255."""
        blob = np.empty(length if self._keep_data else 0, np.uint8)
        filled = 0
        for part in self._iter_slices(start, end):
            try:
                values = bytes(part)
            except (ValueError, TypeError):
                return None
            if self._keep_data:
                blob[filled : filled + len(values)] = np.frombuffer(values, np.uint8)
            filled += len(values)
        return blob[:filled] if self._keep_data else Skipped(filled)

    def _iter_slices(self, start: int, end: int) -> Iterator[list[Any]]:
        """Yield the values of the flat list from *start* to *end*, in slices."""
        while start < end:
            cut = min(start + _CHUNK, end)
            if cut < end:
                comma = bytes(self._bytes[start:cut]).rfind(b",")
                if comma < 0:
                    raise self._error("a number is longer than any valid number", start)
                cut = start + comma
            values = self._parse_slice(start, cut)
            if (cut < end) and not values:
                raise self._error("expected a number", start)
            yield values
            start = cut + 1
            if start >= end and cut < end:
                raise self._error("expected a number", cut)

    def _parse_slice(self, start: int, end: int) -> list[Any]:
        try:
            values: list[Any] = json.loads(b"[" + bytes(self._bytes[start:end]) + b"]")
        except (ValueError, RecursionError) as error:
            raise self._error(f"expected a list of numbers: {error!s:.200}", start) from error
        return values

    def _array(self, start: int, end: int, length: int) -> Numbers:
        """Return the numbers of a long list."""
        array, filled = None, 0
        for part in self._iter_slices(start, end):
            numbers = self._to_array(part)
            try:
                dtype = numbers.dtype if array is None else widen_dtype(array, numbers)
            except ValueError as error:
                raise self._error(str(error)) from error
            if array is None:
                self._spend_memory(length * dtype.itemsize)
                array = np.empty(length, dtype)
            elif dtype != array.dtype:
                self._spend_memory(length * dtype.itemsize)  # the narrower array is freed only afterwards
                array = array.astype(dtype)
            array[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
        return np.empty(0) if array is None else array[:filled]

    def _spend_memory(self, memory: int) -> None:
        self._memory_left -= memory
        if self._memory_left < 0:
            raise self._error(
                f"its values need more memory than is allowed for a file of this length; {ADVICE}"
            )

    def _to_array(self, values: list[Any]) -> Numbers:
        try:
            return to_array(values)
        except ValueError as error:
            raise self._error(str(error)) from error

    def _check_range(self, number: Any) -> None:
        """Raise `RecordError` for a number that no Rust type can represent."""
        if type(number) is int and not -(1 << 63) <= number < 1 << 64:
            raise self._error("a number does not fit into 64 bits")
        if type(number) is float and not math.isfinite(number):
            raise self._error("a number is too large for a float")

    def _string(self) -> str:
        match = _STRING.match(self._bytes, self._position, self._position + MAX_TEXT)
        if match is None:
            raise self._error(
                f"expected text in quotes, at most {MAX_TEXT} bytes long and without line breaks"
            )
        try:
            text: str = json.loads(match[0])
            text.encode()  # an unpaired surrogate is not a character
        except ValueError as error:
            raise self._error(f"invalid UTF-8 in a text: {error}") from error
        self._count_values(len(text) // 64)  # a long text takes up to 4 bytes per character
        self._position = match.end()
        return text

    def _number(self) -> int | float:
        match = _NUMBER.match(self._bytes, self._position)
        if match is None:
            raise self._error("expected a value")
        try:
            number = float(match[0]) if match[1] or match[2] else int(match[0])
        except ValueError as error:
            raise self._error(f"invalid number: {error}") from error
        self._check_range(number)
        self._position = match.end()
        return number

    def _expect(self, *signs: bytes) -> bytes:
        sign = self._peek()
        if sign not in signs:
            raise self._error(f"expected {' or '.join(sign.decode() for sign in signs)}")
        self._position += 1
        return sign

    def _peek(self) -> bytes:
        """Return the next byte that is not whitespace; empty at the end."""
        space = _SPACE.match(self._bytes, self._position)
        self._position = space.end() if space else self._position
        return bytes(self._bytes[self._position : self._position + 1])

    def _count_values(self, values: int) -> None:
        self._values += values
        self._spend_memory(_VALUE_MEMORY * values)
        if self._values > self._limits.values:
            raise self._error(
                f"more than {self._limits.values} values outside lists of numbers in a file of this size; "
                f"{ADVICE}"
            )

    def _error(self, what: str, position: int | None = None) -> RecordError:
        position = self._position if position is None else position
        found = bytes(self._bytes[position : position + 20])
        return RecordError(f"{self._name}, offset {position}: {what}, found {found!r}")


def are_alike(values: list[Any]) -> bool:
    """Return True if *values* are all numbers, or all bools."""
    kinds = set(map(type, values))
    return kinds <= {int, float} or kinds == {bool}


def to_array(values: list[Any]) -> Numbers:
    """Return *values*, which must not be empty, as an array of the smallest type.

    The type is small because one digit of text must not take eight bytes of memory. Raises `ValueError` if
    one does not fit into any type.
    """
    if not are_alike(values):
        raise ValueError("a long list of values that are not all numbers or all bools")
    try:
        array = np.array(values)
    except OverflowError as error:
        raise ValueError(f"a number does not fit into 64 bits: {error}") from error
    has_float = array.dtype.kind == "f" and float in set(map(type, values))
    if array.dtype == object or (array.dtype.kind == "f" and not has_float):
        raise ValueError("a number does not fit into 64 bits")
    if has_float and not np.isfinite(array).all():
        raise ValueError("a number is too large for a float")
    return _narrow_dtype(array)


def widen_dtype(array: Numbers, numbers: Numbers) -> np.dtype[Any]:
    """Return the type that holds both *array* and *numbers*. Raises `ValueError` if none does."""
    kinds = {array.dtype.kind, numbers.dtype.kind}
    dtype = np.result_type(array, numbers)
    if "b" in kinds and len(kinds) > 1:
        raise ValueError("a list mixes numbers and bools")
    if dtype.kind == "f" and "f" not in kinds:
        raise ValueError("a number does not fit into 64 bits")
    return dtype


def _narrow_dtype(array: Numbers) -> Numbers:
    if array.dtype != np.int64:
        return array
    low, high = array.min(), array.max()
    for kind in (np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array
