"""JSON as serde_json writes it, compact or indented: a reader for untrusted input, and a writer.

The reader checks limits first. Long lists of numbers, the content of tensors, become arrays, never Python
objects one by one; `json` parses the rest. The writer yields text in pieces, with bytes as lists of numbers
from 0 to 255.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from stages.contracts.errors import RecordError
from stages.records.byte_readers import Blob, ByteReader, Skipped, rechunk
from stages.records.limits import ADVICE, MAX_DEPTH, Limits, ValueCounts
from stages.records.messagepack_format import NUMBER_KEYS
from stages.records.record_tree import RawTensor, Tree
from stages.records.tensor_data import NumberArray, Numbers, iter_bytes

_VALUE_MEMORY, _NUMBER_MEMORY = 200, 40
"""Bytes of memory of a map, a list or a scalar, and of a number in a list of numbers."""
MAX_TEXT = 1 << 20
"""Bytes of one text, with its quotes, or of one number."""
MAX_SIZE = 1 << 32
"""Bytes of a JSON file; the size must be smaller."""
MAX_LIST = 1024
"""Length up to which numbers, bools and null are returned as a list; a longer list that mixes them too."""
_MAX_BYTES_LIST = 16
"""Length up to which the bytes of a tensor are returned as a list."""
_CHUNK = 1 << 18
"""Characters of a list that are parsed at a time."""

_TOKEN = re.compile(
    rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
    rb"|(\[[-+0-9.eE,a-u \t\n\r]*+\])"
    rb'|[]["{}]'
    rb'|[^]["{}:, \t\n\r]++'
)
"""A text, a list that can contain only numbers, true, false and null, a bracket, or another value."""
_PLACEHOLDER = b"NaN"
"""A constant that JSON lacks, in the place of a list that is parsed separately."""


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
    data = source.read_array(size)
    lists = _ListParser(data, source.name, source.limits, keep_data=keep_data)
    rest = lists.cut()
    del data
    return lists.parse(rest)


class _ListParser:
    """Checks the values in memory, and parses the long lists of numbers."""

    def __init__(self, data: Blob, name: str, limits: Limits, *, keep_data: bool) -> None:
        """*name* is the name of the file, for messages."""
        self._data = data
        self._name = name
        self._keep_data = keep_data
        self._values = 0
        self._limits = limits
        self._memory_left = limits.memory + len(data)
        self._lists: list[Tree] = []
        self._cuts: list[tuple[int, int]] = []

    def cut(self) -> bytes:
        """Return the text with a placeholder for each long list of numbers, and release the data.

        Raises `RecordError` if the text has more values or levels than allowed.
        """
        pieces: list[bytes] = []
        size = depth = end = 0
        key = slice(0, 0)
        for token in _TOKEN.finditer(self._data.data):
            start = token.start()
            self._check_token(slice(start, token.end()), depth)
            if token.start(1) >= 0:
                node = self._flat_list(start + 1, token.end() - 1, self._key(key, start))
                if node is not None:
                    pieces += self._data[end:start].tobytes(), _PLACEHOLDER
                    size += start - end + len(_PLACEHOLDER)
                    end = token.end()
                    self._lists.append(node)
                    self._cuts.append((size, end - start - len(_PLACEHOLDER)))
            else:
                depth += (self._data[start] in b"[{") - (self._data[start] in b"]}")
            key = slice(start, token.end())
        pieces.append(self._data[end:].tobytes())
        self._data = np.empty(0, np.uint8)
        return b"".join(pieces)

    def parse(self, rest: bytes) -> Tree:
        """Return the value of *rest*. Raises `RecordError` if it is not one JSON value."""
        if not rest.isascii():
            self._spend_memory(4 * len(rest), 0)
        lists = iter(self._lists)
        try:
            return json.loads(
                rest.decode(),
                object_pairs_hook=unique_dict,
                parse_int=_integer,
                parse_float=_float,
                parse_constant=lambda _: next(lists),
            )
        except json.JSONDecodeError as error:
            offset = len(error.doc[: error.pos].encode())
            what = f"{error.msg[0].lower()}{error.msg[1:]}, found {rest[offset : offset + 20]!r}"
        except UnicodeDecodeError as error:
            offset, what = error.start, f"invalid UTF-8 in a text: {error}"
        except ValueError as error:
            raise RecordError(f"{self._name}: {error!s:.300}") from error
        offset += sum(removed for place, removed in self._cuts if place <= offset)
        raise RecordError(f"{self._name}, offset {offset}: {what}")

    def _check_token(self, token: slice, depth: int) -> None:
        first = self._data[token.start]
        if first in b"]}":
            return
        if depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH} levels", token.start)
        size = 0 if first == ord("[") else token.stop - token.start
        if size > MAX_TEXT or (first == ord('"') and size == 1):
            raise self._error(
                f"expected text in quotes, at most {MAX_TEXT} bytes long and without line breaks", token.start
            )
        if first in b"NI" or self._data[token.start : token.start + 2].tobytes() == b"-I":
            raise self._error("expected a value", token.start)
        if first == ord('"') and rb"\u" in (text := self._data[token].tobytes()):
            self._check_text(text, token.start)
        self._values += 1 + size // 64  # a long text takes up to 4 bytes per character
        self._spend_memory(_VALUE_MEMORY * (1 + size // 64), token.start)
        if self._values > self._limits.values:
            raise self._error(
                f"more than {self._limits.values} values outside lists of numbers in a file of this size; "
                f"{ADVICE}",
                token.start,
            )

    def _check_text(self, text: bytes, start: int) -> None:
        """Raise `RecordError` for an unpaired surrogate, which is not a character."""
        try:
            json.loads(text).encode()
        except ValueError as error:
            raise self._error(f"invalid text: {error}", start) from error

    def _key(self, token: slice, end: int) -> str:
        """Return the name in *token* if only a colon follows it before *end*; otherwise an empty text."""
        is_key = ord(":") in self._data[token.stop : end]
        return self._data[token].tobytes()[1:-1].decode(errors="replace") if is_key else ""

    def _flat_list(self, start: int, end: int, key: str) -> Tree:
        """Return the numbers, true, false and null from *start* to *end*; None if the list is not long."""
        length = 1 + int(np.count_nonzero(self._data[start:end] == ord(",")))
        if key == "bytes" and (length > _MAX_BYTES_LIST or not self._keep_data):
            blob = self._blob(start, end, length)
            if blob is not None:
                return blob
        is_too_long = length > self._limits.numbers and key not in NUMBER_KEYS
        # one of these letters is in null, in true and in false
        if is_too_long and not any((self._data[start:end] == letter).any() for letter in b"lu"):
            raise self._error(
                f"a list outside tensors has more than {self._limits.numbers} numbers; {ADVICE}", start
            )
        array = self._array(start, end, length) if length > MAX_LIST else None
        if array is not None:
            return array
        self._spend_memory(_NUMBER_MEMORY * length, start)
        return None

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
        while start <= end:
            cut = min(start + _CHUNK, end)
            if cut < end:
                cut = start + self._data[start:cut].tobytes().rfind(b",")
            if cut < start:
                raise self._error("a number is longer than any valid number", start)
            try:
                values: list[Any] = json.loads(b"[" + self._data[start:cut].tobytes() + b"]")
            except ValueError as error:
                raise self._error(f"expected a list of numbers: {error!s:.200}", start) from error
            if not values and (cut < end or self._data[start - 1] == ord(",")):
                raise self._error("expected a number", start)
            yield values
            start = cut + 1

    def _array(self, start: int, end: int, length: int) -> Numbers | None:
        """Return the numbers of a long list, or None if they have no common type."""
        numbers = NumberArray(length)
        for part in self._iter_slices(start, end):
            try:
                memory = numbers.add(part)
            except ValueError:
                return None
            self._spend_memory(memory, start)
        array = numbers.array()
        return array if array.dtype.kind != "f" or np.isfinite(array).all() else None

    def _spend_memory(self, memory: int, start: int) -> None:
        self._memory_left -= memory
        if self._memory_left < 0:
            raise self._error(
                f"its values need more memory than is allowed for a file of this length; {ADVICE}", start
            )

    def _error(self, what: str, start: int) -> RecordError:
        beginning = self._data[start : start + 20].tobytes()
        return RecordError(f"{self._name}, offset {start}: {what}, found {beginning!r}")


def unique_dict(pairs: list[tuple[str, Tree]]) -> dict[str, Tree]:
    """Return the map of *pairs*. Raises `ValueError` if a name occurs twice."""
    node = dict(pairs)
    if len(node) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in node if names.count(name) > 1)
        raise ValueError(f"duplicate name {repeated[:200]!r} in a map")
    return node


def _integer(text: str) -> int:
    """Return the number in *text*. Raises `ValueError` if no Rust type can represent it."""
    number = int(text)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError("a number does not fit into 64 bits")
    return number


def _float(text: str) -> float:
    """Return the number in *text*. Raises `ValueError` if it is too large."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a float")
    return number


INDENT = 2
_WRITE_CHUNK = 1 << 16
"""Bytes of a tensor that are converted to text at a time."""


def encode(node: Tree) -> Iterator[bytes]:
    """Yield the text of *node*, a tree of `pack_record`, without whitespace: serde_json's ``to_writer``."""
    yield from _check_size(_encode(node, -1))


def encode_pretty(node: Tree) -> Iterator[bytes]:
    """Yield the text of *node* with one element per line, as serde_json's ``to_writer_pretty``."""
    yield from _check_size(_encode(node, 0))


def _check_size(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield *pieces*. Raises `RecordError` if they are longer than a JSON record may be."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size >= MAX_SIZE:
            raise RecordError(
                f"the record takes more than {MAX_SIZE} bytes of JSON, which could not be read back; use a "
                "binary format"
            )
        yield piece


def _encode(node: Tree, level: int) -> Iterator[bytes]:
    """Yield *node* as text; *level* is the depth of its indentation, negative for none."""
    if isinstance(node, RawTensor):
        yield from _encode_bytes(iter_bytes(node), level)
    elif isinstance(node, bytes | bytearray | memoryview):
        yield from _encode_bytes([memoryview(node)], level)
    elif isinstance(node, dict):
        colon = b":" if level < 0 else b": "
        entries = ((_encode_scalar(key) + colon, value) for key, value in node.items())
        yield from _encode_container(b"{}", entries, level)
    elif isinstance(node, list):
        yield from _encode_container(b"[]", ((b"", value) for value in node), level)
    else:
        yield _encode_scalar(node)


def _encode_container(brackets: bytes, entries: Iterable[tuple[bytes, Tree]], level: int) -> Iterator[bytes]:
    """Yield *entries*, each with its name in JSON, between *brackets*."""
    inner = level if level < 0 else level + 1
    opening = brackets[:1]
    for name, value in entries:
        yield opening + _line_break(inner) + name
        yield from _encode(value, inner)
        opening = b","
    yield _line_break(level) + brackets[1:] if opening == b"," else brackets


def _encode_bytes(pieces: Iterable[memoryview], level: int) -> Iterator[bytes]:
    """Yield a list of the bytes in *pieces* as numbers."""
    inner = level if level < 0 else level + 1
    texts = [b"," + _line_break(inner) + str(byte).encode() for byte in range(256)]
    first = True
    for block in rechunk(pieces, _WRITE_CHUNK):
        text = b"".join(map(texts.__getitem__, block))
        yield b"[" + text[1:] if first else text
        first = False
    yield b"[]" if first else _line_break(level) + b"]"


def _line_break(level: int) -> bytes:
    """Return the line break and indentation before an element at *level*."""
    return b"" if level < 0 else b"\n" + b" " * (INDENT * level)


def _encode_scalar(node: Tree) -> bytes:
    """Return a number, a text or a constant; an empty struct is a null."""
    if isinstance(node, float):
        return _format_float(node).encode()
    text = json.dumps(None if node == () else node, ensure_ascii=False).encode()
    if len(text) > MAX_TEXT:
        raise RecordError(
            f"the text {node[:20]!r}… of {len(text)} bytes could not be read back from JSON; at most "
            f"{MAX_TEXT} are allowed"
        )
    return text


def _format_float(value: float) -> str:
    """Return the shortest digits that restore *value*, with an exponent below 1e-5 and from 1e16."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-5 <= abs(value) < 1e16:
        return np.format_float_positional(value, trim="0")
    return np.format_float_scientific(value, trim="-", exp_digits=1).replace("e+", "e")
