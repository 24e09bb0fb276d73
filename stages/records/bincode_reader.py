"""Bincode 2 reader: decodes values in the structure of an example tree.

Bincode stores no names, and numbers for the dtypes of tensors, which differ between versions of Burn. In 0.13
and earlier, a tensor is a sequence of numbers whose type only the metadata declares.
"""

import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.byte_readers import ByteReader, Skipped, read_blob
from stages.records.dotted_names import MAX_ENTRIES, describe_path, extend_path
from stages.records.limits import ADVICE, ValueCounts
from stages.records.record_tree import (
    BOOL_STORES,
    FLOATS,
    ITEM_SIZES,
    MAX_DIMENSIONS,
    NUMPY,
    RUST_TYPES,
    Map,
    Metadata,
    RawTensor,
    Record,
    Signed,
    Some,
    Tree,
    Variant,
)
from stages.records.tensor_data import build_tensor

MARKED = {251: 2, 252: 4, 253: 8}
"""First bytes that are markers, with the bytes of the number after each."""
CHUNK = 1 << 16
_FIXED = {"F32", "F64", "U8", "I8", "Bool"}
"""Types whose numbers have a fixed length."""


def find_number_type(metadata: Metadata, like: str, source_name: str) -> str:
    """Return the type of the numbers of a tensor like one of dtype *like*, which *metadata* declares."""
    declared = metadata.float if like in FLOATS else metadata.int
    name = "bool" if like == "Bool" else declared.rsplit("::", 1)[-1]
    if name not in RUST_TYPES:
        raise RecordError(
            f"{source_name}: its metadata declares the unknown type {name[:100]!r} for the numbers of a "
            "tensor"
        )
    return RUST_TYPES[name]


def read_varints(source: ByteReader, dtype: str, count: int, name: str) -> NDArray[Any]:
    """Return the next *count* numbers, of the tensor *name*; those of F16 and BF16 are their bits."""
    values = np.empty(count, NUMPY[dtype].replace("f", "u"))
    limits = np.iinfo(values.dtype)
    where = f"{source.name}: {name}"
    filled = 0
    while filled < count:
        numbers, size = _parse_varints(source.peek(CHUNK), count - filled, where)
        source.skip(size)
        if limits.min < 0:
            numbers = list(map(from_zigzag, numbers))
        if not limits.min <= min(numbers) <= max(numbers) <= limits.max:
            raise RecordError(f"{where} has numbers that are too large for {dtype}")
        values[filled : filled + len(numbers)] = numbers
        filled += len(numbers)
    return values


def _parse_varints(data: bytes, limit: int, where: str) -> tuple[list[int], int]:
    """Return up to *limit* numbers at the beginning of *data*, at least one, and the bytes they take."""
    numbers: list[int] = []
    position = 0
    while position < len(data) and len(numbers) < limit:
        first = data[position]
        end = position + 1 + MARKED.get(first, 0)
        if first > max(MARKED):
            raise RecordError(f"{where} has byte {first}, which starts no number")
        if end > len(data):
            break
        numbers.append(first if end == position + 1 else int.from_bytes(data[position + 1 : end], "little"))
        position = end
    if not numbers:
        raise RecordError(f"{where} is truncated")
    return numbers, position


def from_zigzag(number: int) -> int:
    """Return the signed integer that Burn writes as *number*: 0, 1, 2, 3 become 0, -1, 1, -2."""
    return number // 2 if number % 2 == 0 else -(number + 1) // 2


_FLOAT_NAMES = ("F64", "F32")
_HALVES_AND_INTEGERS = ("F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32")


@dataclass(frozen=True)
class DtypeTable:
    """The dtypes of a range of Burn versions, in the order of their numbers."""

    names: tuple[str, ...]
    bool_has_store: bool = False
    """True if the number of Bool is followed by a number for how it is stored."""
    joins_constants: bool = False
    """True if an array of constants, such as a stride, is one zero byte, and not one for each."""


WITHOUT_U16 = DtypeTable((*_FLOAT_NAMES, *_HALVES_AND_INTEGERS, "U8", "Bool", "QFloat"))
"""0.14 and 0.15."""
WITH_U16 = DtypeTable((*_FLOAT_NAMES, *_HALVES_AND_INTEGERS, "U16", "U8", "Bool", "QFloat"))
"""0.16."""
WITH_FLEX32 = DtypeTable((*_FLOAT_NAMES, "Flex32", *_HALVES_AND_INTEGERS, "U16", "U8", "Bool", "QFloat"))
"""0.17 to 0.20."""
WITH_BOOL_STORE = DtypeTable(WITH_FLEX32.names, bool_has_store=True, joins_constants=True)
"""0.21."""


def parse_version(metadata: Metadata) -> tuple[int, int]:
    """Return Burn's major and minor version. Raises `RecordError` if the metadata has another text."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(\.|$)", metadata.version)
    if match is None:
        raise RecordError(
            f"the record's version is {metadata.version[:100]!r}; expected a Burn version such as '0.21.0', "
            "which determines the numbers of its dtypes"
        )
    return int(match[1]), int(match[2])


_DTYPE_TABLES = (
    ((0, 14), WITHOUT_U16),
    ((0, 16), WITH_U16),
    ((0, 17), WITH_FLEX32),
    ((0, 21), WITH_BOOL_STORE),
)
"""The first version of each table."""


def find_dtype_table(metadata: Metadata) -> DtypeTable | None:
    """Return the table of the version in *metadata*; None before 0.14, which had none."""
    version = parse_version(metadata)
    return next((table for first, table in reversed(_DTYPE_TABLES) if version >= first), None)


def is_constant(node: tuple[Tree, ...]) -> bool:
    """Return whether *node* is an array of constants."""
    return bool(node) and all(part is None for part in node)


MAX_TEXT = 1 << 24
"""Bytes of one text."""
_VALUE_MEMORY = 64
"""Bytes of memory of a small value."""


@dataclass(frozen=True)
class _AnyOf:
    """Alternative examples: of the elements of a vector, or of the values of a map."""

    examples: tuple[Tree, ...]


def memory_needed(counts: ValueCounts, content: int) -> int:
    """Return the memory for small values beyond what the length of *content* bytes allows."""
    return _VALUE_MEMORY * counts.values - 2 * content


def decode(source: ByteReader, like: Tree, *, keep_data: bool = True) -> Record:
    """Return the record in *source*; bytes after the item are not read. *like* is an example of the item.

    Shapes, dtypes and numbers of the example have no effect (before Burn 0.14, only the distinction between
    float, integer and Bool tensors has). Raises `RecordError` if the bytes are not such an item.
    """
    if like is None:
        raise RecordError(
            f"{source.name} is bincode, which stores no names; provide an example of its item (the record of "
            "a new module of the same class, or () for a constant learning rate), or use a format with names"
        )
    return _BincodeParser(source, keep_data=keep_data).record(like)


class _BincodeParser:
    """Parses the values that an example describes."""

    def __init__(self, source: ByteReader, *, keep_data: bool) -> None:
        self._source = source
        self._keep_data = keep_data
        self._values_left = source.limits.values
        self._memory_left = source.limits.memory + 2 * source.remaining()

    def record(self, like: Tree) -> Record:
        """Return the record, whose item is of the same kind as *like*."""
        self._metadata = Metadata(*(self.text("the metadata") for _ in range(5)))
        self._table = find_dtype_table(self._metadata)
        return Record(None if like == () else self.value(like, ()), self._metadata)

    def value(self, like: Tree, path: tuple[str, ...]) -> Tree:
        """Return the next value, which is of the same kind as *like*."""
        self._count_value()
        if isinstance(like, RawTensor):
            name = describe_path(path)
            return self._tensor(name, self._table) if self._table else self._old_tensor(like, name)
        if isinstance(like, Some):
            return Some(self.value(like.value, path)) if self._flag(path, "the tag of an option") else None
        if isinstance(like, Variant | _AnyOf):
            return self._variant(like.examples if isinstance(like, _AnyOf) else (like,), path)
        if isinstance(like, Map):
            return self._map(like, path)
        if isinstance(like, dict):
            return {key: self.value(value, extend_path(path, key)) for key, value in like.items()}
        if isinstance(like, tuple):
            if self._table is not None and self._table.joins_constants and is_constant(like):
                self._scalar(None, path)
                return like
            return tuple(self.value(value, extend_path(path, str(i))) for i, value in enumerate(like))
        if isinstance(like, list):
            return self._vector(like, path)
        return self._scalar(like, path)

    def text(self, name: str) -> str:
        """Return the next text."""
        size = self._size(MAX_TEXT, f"{name} has a text")
        try:
            return self._source.read(size).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{name} has a text that is not valid UTF-8") from error

    def _variant(self, examples: tuple[Tree, ...], path: tuple[str, ...]) -> Tree:
        if not all(isinstance(example, Variant) for example in examples):
            return self.value(examples[0], path)
        index = self._number()
        matching = [example for example in examples if example.index == index]
        if not matching:
            cases = ", ".join(sorted({f"{example.index} ({example.name})" for example in examples}))
            raise self._error(
                f"{describe_path(path)} is case {index} of an enum, but the example has {cases}"
            )
        first = matching[0]
        inner = first.value if len(matching) == 1 else _AnyOf(tuple(example.value for example in matching))
        return Variant(first.name, index, self.value(inner, extend_path(path, first.name)))

    def _map(self, like: Map, path: tuple[str, ...]) -> Map:
        entries = Map()
        others = _AnyOf(tuple(like.values()))
        for _ in range(self._size(MAX_ENTRIES, f"{describe_path(path)} is a map")):
            key = self.text(describe_path(path))
            if key in entries or "\0" in key or ".." in key or not like:
                raise self._error(
                    f"{describe_path(path)} has the invalid key {key[:100]!r}: it is a duplicate, has a NUL "
                    "or '..' in it, or the example has no keys"
                )
            entries[key] = self.value(like.get(key, others), extend_path(path, key))
        return entries

    def _vector(self, like: list[Tree], path: tuple[str, ...]) -> list[Tree]:
        size = self._size(MAX_ENTRIES, f"{describe_path(path)} is a vector")
        if size and not like:
            raise self._error(f"{describe_path(path)} has {size} elements, but the example has none")
        examples = like if size == len(like) else [_AnyOf(tuple(like))] * size
        return [self.value(example, extend_path(path, str(i))) for i, example in enumerate(examples)]

    def _scalar(self, like: Tree, path: tuple[str, ...]) -> Tree:
        name = describe_path(path)
        if like is None:
            if self._source.read(1) != b"\0":
                raise self._error(f"{name} is a constant in the example, but not a zero byte in the file")
            return None
        if isinstance(like, bool):
            return self._flag(path, "true or false")
        if isinstance(like, Signed):
            return Signed(from_zigzag(self._number()))
        if isinstance(like, int):
            return self._number()
        if isinstance(like, float):
            return struct.unpack("<d", self._source.read(8))[0]
        if isinstance(like, str):
            return self.text(name)
        if isinstance(like, bytes):
            return self._source.read(self._size(self._source.remaining(), f"{name} is bytes"))
        raise self._error(
            f"{name} has the type {type(like).__name__} in the example, which cannot be recorded"
        )

    def _tensor(self, name: str, table: DtypeTable) -> RawTensor:
        size = self._size(self._source.remaining(), f"{name} is a tensor")
        data = read_blob(self._source, size, keep_data=self._keep_data)
        shape = self._shape(name)
        dtype, width = self._dtype(name, table)
        return build_tensor(dtype, shape, data, width=width, where=self._where(name))

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._number() for _ in range(self._size(MAX_DIMENSIONS, f"{name} has a shape")))

    def _dtype(self, name: str, table: DtypeTable) -> tuple[str, int]:
        """Return the dtype's name and the bytes of one element in the file."""
        index = self._number()
        if index >= len(table.names):
            raise self._error(
                f"{name} has the dtype number {index}, but Burn {self._metadata.version[:20]} has 0 to "
                f"{len(table.names) - 1}: the file is corrupt, or not the record of such a module"
            )
        dtype = table.names[index]
        if dtype == "QFloat":
            raise self._error(f"{name} is quantized, which only Burn can read; dequantize it in Burn first")
        width = ITEM_SIZES[dtype]
        if dtype == "Bool" and table.bool_has_store:
            store = self._number()
            if store >= len(BOOL_STORES):
                raise self._error(
                    f"{name} is Bool with the storage number {store}; expected 0 to {len(BOOL_STORES) - 1}"
                )
            width = list(BOOL_STORES.values())[store]
        return ("F32" if dtype == "Flex32" else dtype), width

    def _old_tensor(self, like: RawTensor, name: str) -> RawTensor:
        """Return a tensor of 0.13 or earlier: its numbers, of the type in the metadata, and its shape."""
        dtype = find_number_type(self._metadata, like.dtype, self._source.name)
        least_bytes = ITEM_SIZES[dtype] if dtype in _FIXED else 1
        size = self._size(self._source.remaining() // least_bytes, f"{name} is a tensor")
        if dtype in _FIXED:
            data = read_blob(self._source, size * least_bytes, keep_data=self._keep_data)
        else:
            numbers = read_varints(self._source, dtype, size, name)
            data = numbers.view(np.uint8) if self._keep_data else Skipped(numbers.nbytes)
        return build_tensor(dtype, self._shape(name), data, where=self._where(name))

    def _flag(self, path: tuple[str, ...], what: str) -> bool:
        byte = self._source.read(1)[0]
        if byte > 1:
            raise self._error(f"{describe_path(path)} must begin with {what}, 0 or 1; found {byte}")
        return byte == 1

    def _count_value(self) -> None:
        self._values_left -= 1
        self._memory_left -= _VALUE_MEMORY
        if min(self._values_left, self._memory_left) < 0:
            raise self._error(
                f"more than {self._source.limits.values} small values, or more memory for them than its "
                f"length allows; {ADVICE}"
            )

    def _size(self, limit: int, what: str) -> int:
        size = self._number()
        if size > limit:
            raise self._error(f"{what} of size {size}, but at most {limit} can be read")
        return size

    def _number(self) -> int:
        first = self._source.read(1)[0]
        if first not in MARKED:
            if first > max(MARKED):
                raise self._error(f"byte {first} starts no number")
            return first
        return int.from_bytes(self._source.read(MARKED[first]), "little")

    def _error(self, what: str) -> RecordError:
        return RecordError(self._where(what))

    def _where(self, what: str) -> str:
        return f"{self._source.name}, before offset {self._source.offset}: {what}"
