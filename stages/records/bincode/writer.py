"""Bincode 2 (Burn's ``.bin``): values with no names, so an example tree says what is read.

Whole numbers are of variable length (one byte up to 250, then a marker and 2, 4 or 8 bytes, little-endian;
signed ones zigzag), floats 8 bytes. `stages.records.record_tree` defines the kinds of nodes.
An item that is None is Rust's ``()`` (a constant learning rate)
and takes no byte; anywhere else None takes one.
"""

import struct
from collections.abc import Iterator
from dataclasses import fields

from stages.contracts.errors import RecordError
from stages.records import data_section
from stages.records import dotted_names as flat
from stages.records.bincode.dtype_tables import DtypeTable, find_dtype_table
from stages.records.bincode.reader import MAX_TEXT
from stages.records.dotted_names import MAX_ENTRIES
from stages.records.record_tree import Map, RawTensor, Record, Signed, Some, Tree, Variant

Pieces = Iterator[bytes | memoryview]
FLOAT = struct.Struct("<d")


def encode(record: Record, *, dtype_table: DtypeTable | None = None) -> Pieces:
    """The bytes of *record*, in pieces. Without *dtype_table* the metadata's version says which it is.

    Raises `RecordError` for a record without metadata, or a dtype that the version does not know.
    """
    if record.metadata is None:
        raise RecordError("the record has no metadata, which Burn's bincode begins with: give it one")
    table = dtype_table or find_dtype_table(record.metadata)
    for part in fields(record.metadata):
        yield _text(getattr(record.metadata, part.name))
    if record.item is not None:
        yield from _encoded(record.item, table, ())


def _varint(value: int) -> bytes:
    """*value*, 0 to 2^64 - 1, in as few bytes as it needs."""
    if value < 0:
        raise RecordError(f"{value} has a sign, and its place holds none: make it `Signed`")
    if value < 251:
        return bytes([value])
    for marker, size in ((251, 2), (252, 4), (253, 8)):
        if value < 1 << 8 * size:
            return bytes([marker]) + value.to_bytes(size, "little")
    raise RecordError(f"{value} does not fit into 64 bits")


def _text(value: str) -> bytes:
    data = flat.check_text(value, "the record").encode()
    if len(data) > MAX_TEXT:
        raise RecordError(f"the record has a text of {len(data)} bytes, at most {MAX_TEXT} can be read back")
    return _varint(len(data)) + data


def _encoded(node: Tree, table: DtypeTable, path: tuple[str, ...]) -> Pieces:
    if isinstance(node, RawTensor):
        yield from _tensor(node, table, ".".join(path))
    elif isinstance(node, Some):
        yield b"\x01"
        yield from _encoded(node.value, table, path)
    elif isinstance(node, Variant):
        yield _varint(node.index)
        yield from _encoded(node.value, table, flat.extend_path(path, node.name))
    elif isinstance(node, dict | list | tuple):
        yield from _container(node, table, path)
    else:
        yield _scalar(node, ".".join(path))


def _container(node: Tree, table: DtypeTable, path: tuple[str, ...]) -> Pieces:
    if isinstance(node, Map | list):
        if len(node) > MAX_ENTRIES:
            raise RecordError(
                f"{'.'.join(path) or 'the item'} has {len(node)} elements, at most {MAX_ENTRIES} can be read "
                "back: record numbers as a tensor, or use a format with names"
            )
        yield _varint(len(node))
    pairs = node.items() if isinstance(node, dict) else ((str(i), value) for i, value in enumerate(node))
    for key, value in pairs:
        if isinstance(node, Map):
            yield _text(key)
        yield from _encoded(value, table, flat.extend_path(path, key))


def _scalar(node: Tree, name: str) -> bytes:
    if node is None:
        return b"\x00"
    if isinstance(node, bool):
        return b"\x01" if node else b"\x00"
    if isinstance(node, Signed):
        return _varint(_zigzag(node))
    if isinstance(node, int):
        return _varint(node)
    if isinstance(node, float):
        return FLOAT.pack(node)
    if isinstance(node, str):
        return _text(node)
    if isinstance(node, bytes):
        return _varint(len(node)) + node
    raise RecordError(f"{name} is a {type(node).__name__}, which no record can hold")


def _zigzag(value: int) -> int:
    """*value* as a number without a sign: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return 2 * value if value >= 0 else -2 * value - 1


def _tensor(tensor: RawTensor, table: DtypeTable, name: str) -> Pieces:
    dtype = tensor.dtype
    if dtype == "Flex32" and dtype not in table.names:
        dtype = "F32"
    if dtype not in table.names:
        raise RecordError(f"{name} is {dtype}, which this version of Burn does not know: {table.names}")
    yield _varint(tensor.nbytes)
    yield from data_section.iter_bytes(tensor, name)
    store = b"\x00" if dtype == "Bool" and table.bool_has_store else b""
    shape = b"".join(map(_varint, tensor.shape))
    yield _varint(len(tensor.shape)) + shape + _varint(table.names.index(dtype)) + store
