"""MessagePack writer: encodes a tree piece by piece, without a second copy of the tensors in memory.

A tensor is a map of ``bytes`` (row-major, little-endian), ``shape`` and ``dtype``, as in Burn since 0.14.
Every number, text and length takes the fewest bytes that hold it, as ``msgpack.packb`` and Burn write them.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import msgpack
import numpy as np

from stages.contracts.errors import RecordError
from stages.records.dtypes import ITEM_SIZES
from stages.records.limits import MAX_DEPTH
from stages.records.record_tree import RawTensor, Some, Tree, Variant

MAX_VALUE_SIZE = 2**32 - 1
"""Bytes of one value; MessagePack cannot encode a longer length."""
_NUMBERS_PER_PIECE = 4096
_SCALAR = int | float | str | None

_packer = msgpack.Packer(use_bin_type=True, autoreset=True)
_map_header = cast(Callable[[int], bytes], _packer.pack_map_header)
_array_header = cast(Callable[[int], bytes], _packer.pack_array_header)


def encode(node: Tree, path: str = "") -> Iterator[bytes | memoryview]:
    """Yield the bytes of *node* in pieces; those of a tensor are views of its memory.

    *path* is the dotted path of *node* in its tree. Raises `RecordError` with the path of a value that cannot
    be written.
    """
    yield from _encode(node, path, 0)


def _encode(node: Tree, path: str, depth: int) -> Iterator[bytes | memoryview]:
    if depth > MAX_DEPTH:
        raise RecordError(
            f"{_describe(path)} is nested deeper than {MAX_DEPTH} levels and could not be read back"
        )
    if isinstance(node, RawTensor):
        yield from _encode_tensor(node, path)
    elif isinstance(node, Some):
        yield from _encode(node.value, path, depth)
    elif isinstance(node, Variant):
        yield from _encode_map({node.name: node.value}, path, depth)
    elif isinstance(node, dict):
        yield from _encode_map(node, path, depth)
    elif isinstance(node, list | tuple):
        yield from _encode_sequence(node, path, depth)
    elif isinstance(node, bytes | bytearray | memoryview):
        yield _bin_header(memoryview(node).nbytes, path)
        yield node if isinstance(node, bytes) else memoryview(node)
    else:
        yield _encode_scalar(node, path)


def _encode_map(node: Mapping[Any, Tree], path: str, depth: int) -> Iterator[bytes | memoryview]:
    yield _map_header(len(node))
    for key, value in node.items():
        if not isinstance(key, str):
            raise RecordError(
                f"{_describe(path)} has the key {key!r} of type {type(key).__name__}, which could not be "
                f"read back; use the text {str(key)!r}"
            )
        yield _encode_scalar(key, path)
        yield from _encode(value, f"{path}.{key}" if path else key, depth + 1)


def _encode_sequence(node: Sequence[Tree], path: str, depth: int) -> Iterator[bytes | memoryview]:
    yield _array_header(len(node))
    if all(isinstance(value, _SCALAR) for value in node):
        values = iter(node)
        while part := [_encode_scalar(value, path) for value in islice(values, _NUMBERS_PER_PIECE)]:
            yield b"".join(part)
        return
    for index, value in enumerate(node):
        yield from _encode(value, f"{path}.{index}" if path else str(index), depth + 1)


def _encode_scalar(value: Any, path: str) -> bytes:
    if not isinstance(value, _SCALAR) or isinstance(value, np.generic):
        raise RecordError(
            f"{_describe(path)} is a {type(value).__module__}.{type(value).__name__} and cannot be recorded; "
            "use tensors, numbers, text, bytes, lists and dicts, which can be read without running code"
        )
    try:
        return cast(bytes, _packer.pack(value))
    except (ValueError, OverflowError) as error:
        _packer.reset()
        raise RecordError(f"{_describe(path)} cannot be written as MessagePack: {error}") from error


def _encode_tensor(tensor: RawTensor, path: str) -> Iterator[bytes | memoryview]:
    if tensor.dtype not in ITEM_SIZES:
        raise RecordError(
            f"{_describe(path)} is a tensor of the unsupported dtype {tensor.dtype!r}; "
            f"use one of {', '.join(ITEM_SIZES)}"
        )
    yield _map_header(3)
    yield _encode_scalar("bytes", path)
    yield _bin_header(tensor.nbytes, path)
    left = tensor.nbytes
    for piece in tensor.pieces():
        left -= piece.nbytes
        yield piece
    if left:
        raise RecordError(
            f"{_describe(path)} is a {tensor.dtype} tensor of shape {list(tensor.shape)}, "
            f"which takes {tensor.nbytes} bytes, but its data has {tensor.nbytes - left}"
        )
    yield _encode_scalar("shape", path)
    yield from _encode_sequence(tensor.shape, path, 0)
    yield _encode_scalar("dtype", path)
    yield _encode_scalar(tensor.dtype, path)


def _bin_header(size: int, path: str) -> bytes:
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    if size < 1 << 16:
        return struct.pack(">BH", 0xC5, size)
    if size <= MAX_VALUE_SIZE:
        return struct.pack(">BI", 0xC6, size)
    raise RecordError(
        f"{_describe(path)} has {size} bytes, but a value in MessagePack is limited to 4 GiB; "
        "save it as safetensors or burnpack"
    )


def _describe(path: str) -> str:
    return path or "the value"
