"""Bincode 2 writer (Burn's ``.bin``): values without names, so reading requires an example tree.

Integers have a variable length (one byte up to 250, otherwise a marker and 2, 4 or 8 bytes, little-endian;
signed ones zigzag), floats have 8 bytes. `stages.records.record_tree` defines the kinds of nodes. An item
that is None is Rust's ``()`` (a constant learning rate) and takes no byte; anywhere else None takes one.
"""

import struct
from collections.abc import Iterator
from dataclasses import astuple

from stages.contracts.errors import RecordError
from stages.records import tensor_data
from stages.records.bincode_reader import MAX_TEXT, DtypeTable, find_dtype_table, is_constant
from stages.records.dotted_names import MAX_ENTRIES, check_text, extend_path
from stages.records.record_tree import Map, RawTensor, Record, Signed, Some, Tree, Variant, fields_of

Pieces = Iterator[bytes | memoryview]
FLOAT = struct.Struct("<d")


def encode(record: Record) -> Pieces:
    """Yield the bytes of *record* in pieces, with the dtypes of the metadata's version.

    Raises `RecordError` for a record without metadata, or for a dtype that the version does not support.
    """
    if record.metadata is None:
        raise RecordError("the record has no metadata, with which a bincode file begins; set its metadata")
    table = find_dtype_table(record.metadata)
    if table is None:
        raise RecordError(
            f"Burn {record.metadata.version[:20]} stored no dtypes in its tensors; write for version 0.14 or "
            "later"
        )
    for text in astuple(record.metadata):
        yield _encode_text(text)
    if record.item is not None:
        yield from _encode(record.item, table, ())


def _encode_varint(value: int) -> bytes:
    """Return *value*, 0 to 2^64 - 1, in the fewest bytes."""
    if value < 0:
        raise RecordError(f"{value} is negative, but its type is unsigned; use `Signed`")
    if value < 251:
        return bytes([value])
    for marker, size in ((251, 2), (252, 4), (253, 8)):
        if value < 1 << 8 * size:
            return bytes([marker]) + value.to_bytes(size, "little")
    raise RecordError(f"{value} does not fit into 64 bits")


def _encode_text(value: str) -> bytes:
    data = check_text(value, "the record").encode()
    if len(data) > MAX_TEXT:
        raise RecordError(
            f"the record has a text of {len(data)} bytes, but at most {MAX_TEXT} can be read back"
        )
    return _encode_varint(len(data)) + data


def _encode(node: Tree, table: DtypeTable, path: tuple[str, ...]) -> Pieces:
    if isinstance(node, RawTensor):
        yield from _encode_tensor(node, table, ".".join(path))
    elif isinstance(node, Some):
        yield b"\x01"
        yield from _encode(node.value, table, path)
    elif isinstance(node, Variant):
        yield _encode_varint(node.index)
        yield from _encode(node.value, table, extend_path(path, node.name))
    elif table.joins_constants and isinstance(node, tuple) and is_constant(node):
        yield b"\x00"
    elif isinstance(node, dict | list | tuple):
        yield from _encode_container(node, table, path)
    else:
        yield _encode_scalar(node, ".".join(path))


def _encode_container(node: Tree, table: DtypeTable, path: tuple[str, ...]) -> Pieces:
    if isinstance(node, Map | list):
        if len(node) > MAX_ENTRIES:
            raise RecordError(
                f"{'.'.join(path) or 'the item'} has {len(node)} elements, but at most {MAX_ENTRIES} can be "
                "read back; record numbers as a tensor, or use a format with names"
            )
        yield _encode_varint(len(node))
    for key, value in fields_of(node):
        if isinstance(node, Map):
            yield _encode_text(key)
        yield from _encode(value, table, extend_path(path, key))


def _encode_scalar(node: Tree, name: str) -> bytes:
    if node is None:
        return b"\x00"
    if isinstance(node, bool):
        return b"\x01" if node else b"\x00"
    if isinstance(node, Signed):
        return _encode_varint(_zigzag(node))
    if isinstance(node, int):
        return _encode_varint(node)
    if isinstance(node, float):
        return FLOAT.pack(node)
    if isinstance(node, str):
        return _encode_text(node)
    if isinstance(node, bytes):
        return _encode_varint(len(node)) + node
    raise RecordError(f"{name} has the type {type(node).__name__}, which cannot be recorded")


def _zigzag(value: int) -> int:
    """Return *value* as an unsigned number: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return 2 * value if value >= 0 else -2 * value - 1


def _encode_tensor(tensor: RawTensor, table: DtypeTable, name: str) -> Pieces:
    dtype = tensor.dtype
    if dtype == "Flex32" and dtype not in table.names:
        dtype = "F32"
    if dtype not in table.names:
        raise RecordError(
            f"{name} is {dtype}, which this version of Burn does not support; use one of {table.names}"
        )
    yield _encode_varint(tensor.nbytes)
    yield from tensor_data.iter_bytes(tensor)
    store = b"\x00" if dtype == "Bool" and table.bool_has_store else b""
    shape = b"".join(map(_encode_varint, tensor.shape))
    yield _encode_varint(len(tensor.shape)) + shape + _encode_varint(table.names.index(dtype)) + store
