"""MessagePack, piece by piece: neither writing nor reading needs a second copy of the tensors in memory.

A tensor is a map of ``bytes`` (row-major, little-endian), ``shape`` and ``dtype``, as in Burn since 0.14.
Every number, text and length takes the fewest bytes that hold it, as ``msgpack.packb`` and Burn write them.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from stages.contracts.errors import RecordError
from stages.records.dtypes import ITEM_SIZES
from stages.records.messagepack.reader import DEEPEST
from stages.records.record_tree import RawTensor, Some, Tree, Variant

LARGEST = 2**32 - 1
"""Bytes of one value; MessagePack has no longer length."""
_TOGETHER = 4096
"""Numbers of a list that are packed as one piece."""
_SMALL = int | float | str | None
_FLOATS = {np.dtype(np.float32): (0xCA, ">f4"), np.dtype(np.float64): (0xCB, ">f8")}

_packer = msgpack.Packer(use_bin_type=True, autoreset=True)
_map_header = cast(Callable[[int], bytes], _packer.pack_map_header)
_array_header = cast(Callable[[int], bytes], _packer.pack_array_header)


def encode(node: Tree, path: str = "") -> Iterator[bytes | memoryview]:
    """The bytes of *node*, in pieces; those of a tensor are its own memory.

    *path* is where *node* stands in its tree. Raises `RecordError` with the path of what cannot be written.
    """
    yield from _encoded(node, path, 0)


def _encoded(node: Tree, path: str, depth: int) -> Iterator[bytes | memoryview]:
    if depth > DEEPEST:
        raise RecordError(f"{_at(path)} is nested deeper than {DEEPEST}, and could not be read back")
    if isinstance(node, RawTensor):
        yield from _tensor(node, path)
    elif isinstance(node, Some):
        yield from _encoded(node.value, path, depth)
    elif isinstance(node, Variant):
        yield from _mapping({node.name: node.value}, path, depth)
    elif isinstance(node, dict):
        yield from _mapping(node, path, depth)
    elif isinstance(node, list | tuple):
        yield from _sequence(node, path, depth)
    elif isinstance(node, np.ndarray):
        yield from _array(node, path)
    elif isinstance(node, bytes | bytearray | memoryview):
        yield _bin_header(memoryview(node).nbytes, path)
        yield node if isinstance(node, bytes) else memoryview(node)
    else:
        yield _packed(node, path)


def _mapping(node: Mapping[Any, Tree], path: str, depth: int) -> Iterator[bytes | memoryview]:
    yield _map_header(len(node))
    for key, value in node.items():
        if not isinstance(key, str):
            raise RecordError(
                f"{_at(path)} has the key {key!r}, which is no text but a {type(key).__name__}, "
                f"and could not be read back: use {str(key)!r}"
            )
        yield _packed(key, path)
        yield from _encoded(value, f"{path}.{key}" if path else key, depth + 1)


def _sequence(node: Sequence[Tree], path: str, depth: int) -> Iterator[bytes | memoryview]:
    yield _array_header(len(node))
    if all(isinstance(value, _SMALL) for value in node):
        values = iter(node)
        while part := [_packed(value, path) for value in islice(values, _TOGETHER)]:
            yield b"".join(part)
        return
    for index, value in enumerate(node):
        yield from _encoded(value, f"{path}.{index}" if path else str(index), depth + 1)


def _packed(value: Any, path: str) -> bytes:
    if not isinstance(value, _SMALL) or isinstance(value, np.generic):
        raise RecordError(
            f"{_at(path)} is a {type(value).__module__}.{type(value).__name__} and cannot be recorded: only "
            "tensors, numbers, text, bytes, lists and dicts can (nothing that would need code to be read)"
        )
    try:
        return cast(bytes, _packer.pack(value))
    except (ValueError, OverflowError) as error:
        _packer.reset()
        raise RecordError(f"{_at(path)} does not fit into MessagePack: {error}") from error


def _tensor(tensor: RawTensor, path: str) -> Iterator[bytes | memoryview]:
    if tensor.dtype not in ITEM_SIZES:
        raise RecordError(
            f"{_at(path)} is a tensor of {tensor.dtype!r}, which no record has: "
            f"use one of {', '.join(ITEM_SIZES)}"
        )
    yield _map_header(3)
    yield _packed("bytes", path)
    yield _bin_header(tensor.nbytes, path)
    left = tensor.nbytes
    for piece in tensor.pieces():
        left -= piece.nbytes
        yield piece
    if left:
        raise RecordError(
            f"{_at(path)} is a {tensor.dtype} tensor of shape {list(tensor.shape)}, "
            f"which are {tensor.nbytes} bytes, but its data has {tensor.nbytes - left}"
        )
    yield _packed("shape", path)
    yield from _sequence(tensor.shape, path, 0)
    yield _packed("dtype", path)
    yield _packed(tensor.dtype, path)


def _array(array: NDArray[Any], path: str) -> Iterator[bytes | memoryview]:
    """An array as `decoded` gives it: of bytes a ``bin``, of numbers a list of them."""
    if (
        array.ndim != 1
        or array.dtype.kind not in "uif"
        or array.dtype.itemsize < array.dtype.kind.count("f") * 4
    ):
        raise RecordError(f"{_at(path)} is an array of {array.dtype} {array.shape}: record it as a tensor")
    if array.dtype == np.uint8:
        yield _bin_header(array.nbytes, path)
        yield np.ascontiguousarray(array).data
        return
    yield _array_header(len(array))
    for start in range(0, len(array), _TOGETHER):
        yield _numbers(array[start : start + _TOGETHER])


def _numbers(array: NDArray[Any]) -> bytes:
    if array.dtype not in _FLOATS:
        return b"".join(_packer.pack(value) for value in array.tolist())
    marker, width = _FLOATS[array.dtype]
    rows = np.empty(len(array), [("marker", "u1"), ("value", width)])
    rows["marker"], rows["value"] = marker, array
    return rows.tobytes()


def _bin_header(size: int, path: str) -> bytes:
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    if size < 1 << 16:
        return struct.pack(">BH", 0xC5, size)
    if size <= LARGEST:
        return struct.pack(">BI", 0xC6, size)
    raise RecordError(
        f"{_at(path)} has {size} bytes, and MessagePack ends at 4 GiB a value: "
        "save it as safetensors or burnpack, which take it"
    )


def _at(path: str) -> str:
    return path or "the value"
