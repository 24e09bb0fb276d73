"""MessagePack, Burn's default format: a reader for untrusted input in bounded memory, and a writer.

The writer encodes piece by piece, without a second copy of the tensors in memory. Every number, text and
length takes the fewest bytes that hold it, as ``msgpack.packb`` and Burn write them.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from struct import Struct

import msgpack

from stages.contracts.errors import RecordError
from stages.records import tensor_data
from stages.records.byte_readers import Blob, ByteReader, Skipped, read_blob
from stages.records.limits import ADVICE, MAX_DEPTH, MIN_NUMBERS, ValueCounts
from stages.records.record_tree import RawTensor, Tree
from stages.records.tensor_data import NumberArray

_VALUE_MEMORY, _ENTRY_MEMORY = 58, 120
"""Bytes of memory of a small value, and of a map's entry in addition to its value."""
_CONTAINER_MEMORY, _BLOB_MEMORY = 120, 240
"""Additional bytes of memory of a container, and of an array of bytes."""
NUMBER_KEYS = frozenset({"bytes", "value"})
"""Keys of lists of numbers that can be a tensor's: Burn until 0.13 wrote ``value``."""
_WINDOW = 1 << 14
_NUMBERS_TOGETHER = 4096
"""Numbers that are Python objects at a time."""

_SCALARS = {
    marker: Struct(f">{code}")
    for marker, code in zip(
        (0xCA, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3), "fdBHIQbhiq", strict=True
    )
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS = {marker: Struct(f">{code}") for marker, code in zip(range(0xD9, 0xE0), "BHIHIHI", strict=True)}
_BINARIES = {marker: Struct(f">{code}") for marker, code in zip((0xC4, 0xC5, 0xC6), "BHI", strict=True)}


def memory_needed(counts: ValueCounts, content: int) -> int:
    """Return the memory for small values beyond what the length of *content* bytes allows."""
    values = _VALUE_MEMORY * counts.values + _ENTRY_MEMORY * counts.keys
    containers = _CONTAINER_MEMORY * counts.containers + _BLOB_MEMORY * counts.tensors
    return values + containers + counts.text - 2 * content


def decode(source: ByteReader, *, keep_data: bool = True) -> Tree:
    """Return the next value of *source*; bytes after it are not read.

    Bytes are returned as `Blob`, or as `Skipped` without *keep_data*. An array of `MIN_NUMBERS` numbers or
    more can be returned as a NumPy array: of float64, or of integers in a type that holds them (never uint8).
    Raises `RecordError` for input that is truncated, is not MessagePack, or cannot be in a record.
    """
    return _MessagePackParser(source, keep_data=keep_data).value(0)


class _MessagePackParser:
    """Parses one value."""

    def __init__(self, source: ByteReader, *, keep_data: bool) -> None:
        self._source = source
        self._keep_data = keep_data
        self._path: list[str | int] = []
        self._memory_left = source.limits.memory + 2 * source.remaining()
        self._values_left = source.limits.values

    def value(self, depth: int) -> Tree:
        marker = self._source.read(1)[0]
        self._spend(_VALUE_MEMORY, values=1)
        if marker < 0x80:
            return marker
        if marker >= 0xE0:
            return marker - 0x100
        if marker in _SCALARS:
            return self._unpack(_SCALARS[marker])
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker in _BINARIES:
            return self._blob(self._unpack(_BINARIES[marker]))
        if marker < 0xC0 or marker in _LENGTHS:
            return self._text_or_container(marker, depth)
        raise self._error(f"unexpected byte {marker:#04x}, which starts no value that a record can have")

    def _text_or_container(self, marker: int, depth: int) -> Tree:
        """Return a text, an array or a map, each of which can have a short length encoded in *marker*."""
        size = self._unpack(_LENGTHS[marker]) if marker in _LENGTHS else marker & 0x0F
        if marker < 0x90 or marker >= 0xDE:
            return self._map(size, depth + 1)
        if marker < 0xA0 or marker >= 0xDC:
            return self._array(size, depth + 1)
        return self._text(marker & 0x1F if marker < 0xC0 else size)

    def _map(self, size: int, depth: int) -> dict[str, Tree]:
        self._enter_container(2 * size, "map", depth)
        node: dict[str, Tree] = {}
        self._path.append("")
        for _ in range(size):
            key = self._key()
            if key in node:
                raise self._error(f"duplicate key {key!r} in a map")
            self._path[-1] = key
            node[key] = self.value(depth)
        self._path.pop()
        return node

    def _key(self) -> str:
        marker = self._source.read(1)[0]
        self._spend(_ENTRY_MEMORY, values=1)
        if 0xA0 <= marker < 0xC0:
            return self._text(marker & 0x1F)
        if 0xD9 <= marker <= 0xDB:
            return self._text(self._unpack(_LENGTHS[marker]))
        raise self._error(f"expected a key that is text, found a value that starts with {marker:#04x}")

    def _array(self, size: int, depth: int) -> Tree:
        self._enter_container(size, "array", depth)
        values: list[Tree] = []
        if size >= MIN_NUMBERS:
            prefix = self._number_prefix(size)
            if not prefix.missing:
                return prefix.array()
            values = prefix.array().tolist()
            self._spend(_VALUE_MEMORY * len(values), values=len(values))
        self._path.append(0)
        for index in range(len(values), size):
            self._path[-1] = index
            values.append(self.value(depth))
        self._path.pop()
        return values

    def _number_prefix(self, size: int) -> NumberArray:
        """Return the numbers of one type at the start of an array of *size*."""
        prefix, most = NumberArray(size), self._source.limits.numbers
        kind: type | None = None
        while prefix.missing:
            numbers, used = _take_numbers(self._source.peek(_WINDOW), prefix.missing, kind)
            if not used:
                break
            if size > most and (not self._path or self._path[-1] not in NUMBER_KEYS):
                raise self._error(
                    f"an array outside tensors has {size} numbers, but at most {most} are allowed; {ADVICE}"
                )
            kind = type(numbers[0])
            prefix.add(numbers)
            self._source.skip(used)
        return prefix

    def _text(self, size: int) -> str:
        data = self._source.read(size)
        self._spend(size)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            what = f"{data[:40]!r} is not valid UTF-8: {error.reason} at byte {error.start} of the text"
            raise self._error(what) from error

    def _blob(self, size: int) -> Blob | Skipped:
        self._spend(_BLOB_MEMORY)
        return read_blob(self._source, size, keep_data=self._keep_data)

    def _enter_container(self, least: int, kind: str, depth: int) -> None:
        self._spend(_CONTAINER_MEMORY)
        if depth > MAX_DEPTH:
            raise self._error(f"this {kind} is nested deeper than {MAX_DEPTH} levels")
        if least > self._source.remaining():
            raise self._error(
                f"this {kind} declares at least {least} bytes, but {self._source.remaining()} remain"
            )

    def _spend(self, memory: int, values: int = 0) -> None:
        """Raise `RecordError` if *memory* for small *values* exceeds the rest of the limits."""
        self._memory_left -= memory
        self._values_left -= values
        if self._memory_left < 0:
            raise self._error(
                f"its small values need more memory than is allowed for a file of this length; {ADVICE}"
            )
        if self._values_left < 0:
            raise self._error(
                f"more than {self._source.limits.values} small values in a file of this size; {ADVICE}"
            )

    def _unpack(self, form: Struct) -> int:
        number: int = form.unpack(self._source.read(form.size))[0]
        return number

    def _error(self, what: str) -> RecordError:
        where = f" (in {'.'.join(map(str, self._path))})" if self._path else ""
        return RecordError(f"{self._source.name}, offset {self._source.offset}{where}: {what}")


def _take_numbers(window: bytes, limit: int, kind: type[int | float] | None) -> tuple[list[int | float], int]:
    """Return up to *limit* numbers of one type at the beginning of *window*, and how many bytes they take.

    If *kind* is not None, the numbers must be of this type. Integers have at most 63 bits.
    """
    unpacker = msgpack.Unpacker(read_size=_WINDOW)
    unpacker.feed(window)
    numbers: list[int | float] = []
    used = 0
    with suppress(ValueError):  # the window has what is not a number, and the caller reads it
        for number in islice(unpacker, min(limit, _NUMBERS_TOGETHER)):
            kind = kind or type(number)
            if type(number) is not kind or kind not in (int, float) or (kind is int and number >= 1 << 63):
                break
            numbers.append(number)
            used = unpacker.tell()
    return numbers, used


def encode(node: Tree) -> Iterator[bytes | memoryview]:
    """Yield the bytes of *node*, a tree of `pack_record`, in pieces; those of tensors are views of memory."""
    tensors: list[tuple[int, RawTensor]] = []

    def leave_out(tensor: RawTensor) -> None:
        """Note where *tensor* belongs; nil, a byte, is packed in its place."""
        tensors.append((packer.getbuffer().nbytes, tensor))

    packer = msgpack.Packer(default=leave_out)
    packed = memoryview(packer.pack(node))
    start = 0
    for offset, tensor in tensors:
        yield packed[start:offset]
        yield _bin_header(tensor.nbytes)
        yield from tensor_data.iter_bytes(tensor)
        start = offset + 1
    yield packed[start:]


def _bin_header(size: int) -> bytes:
    for marker, form in _BINARIES.items():
        if size < 1 << 8 * form.size:
            return bytes([marker]) + form.pack(size)
    raise RecordError(f"a value of {size} bytes exceeds the 4 GiB of MessagePack")
