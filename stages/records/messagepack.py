"""MessagePack, piece by piece: what is written never needs a second copy of the tensors in memory.

A tensor is a map of ``bytes`` (row-major, little-endian), ``shape`` and ``dtype``, as in Burn since 0.14.
"""

import math
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import torch
from torch import Tensor

from stages.contracts.errors import RecordError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "Bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_TENSOR_KEYS = {"bytes", "shape", "dtype"}

_packer = msgpack.Packer(use_bin_type=True)


def encoded(node: Any) -> Iterator[bytes | memoryview]:
    """The bytes of *node* (dicts, lists, text, numbers, bytes, tensors), in pieces."""
    if isinstance(node, Tensor):
        yield from _encoded_tensor(node)
    elif isinstance(node, dict):
        yield _packer.pack_map_header(len(node))
        for key, value in node.items():
            if not isinstance(key, str):
                raise RecordError(
                    f"key {key!r} is no text but a {type(key).__name__}, and could not be read back: use "
                    f"{str(key)!r}"
                )
            yield _packer.pack(key)
            yield from encoded(value)
    elif isinstance(node, list | tuple):
        yield _packer.pack_array_header(len(node))
        for value in node:
            yield from encoded(value)
    elif node is None or isinstance(node, bool | int | float | str | bytes):
        yield _packer.pack(node)
    else:
        raise RecordError(
            f"a {type(node).__name__} cannot be recorded: only tensors, numbers, text, bytes, "
            "lists and dicts can (nothing that would need code to be read)"
        )


def decoded(data: bytes, source: str) -> Any:
    """The tree in *data*; *source* names it in a `RecordError`.

    Sequences come back as lists. A map that names a key twice is refused.
    """
    try:
        return msgpack.unpackb(
            data, object_pairs_hook=lambda pairs: _node(pairs, source), strict_map_key=True
        )
    except (ValueError, msgpack.exceptions.UnpackException, struct.error) as error:
        raise RecordError(
            f"{source} is no whole MessagePack value: {type(error).__name__} {error}"
        ) from error


def _encoded_tensor(tensor: Tensor) -> Iterator[bytes | memoryview]:
    if tensor.dtype not in _NAMES:
        raise RecordError(
            f"a tensor of {tensor.dtype} cannot be recorded, only of {', '.join(map(str, _NAMES))}: "
            "convert it, a complex one with torch.view_as_real"
        )
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    yield _packer.pack_map_header(3)
    yield _packer.pack("bytes")
    yield _bin_header(flat.numel() * flat.element_size())
    yield flat.view(torch.uint8).numpy().data
    yield _packer.pack("shape")
    yield _packer.pack(list(tensor.shape))
    yield _packer.pack("dtype")
    yield _packer.pack(_NAMES[tensor.dtype])


def _bin_header(size: int) -> bytes:
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    if size < 1 << 16:
        return struct.pack(">BH", 0xC5, size)
    if size < 1 << 32:
        return struct.pack(">BI", 0xC6, size)
    raise RecordError(f"a tensor of {size} bytes does not fit: MessagePack ends at 4 GiB a value")


def _node(pairs: list[tuple[str, Any]], source: str) -> Any:
    node = dict(pairs)
    if len(node) != len(pairs):
        raise RecordError(f"{source} names a key twice in one map")
    return _tensor(node, source) if node.keys() == _TENSOR_KEYS else node


def _tensor(node: dict[str, Any], source: str) -> Tensor:
    data, shape, name = node["bytes"], node["shape"], node["dtype"]
    if name not in DTYPES:
        raise RecordError(f"{source} has a tensor of unknown dtype {name!r}")
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise RecordError(f"{source} has a tensor of shape {shape!r}")
    expected = math.prod(shape) * DTYPES[name].itemsize
    if not isinstance(data, bytes) or len(data) != expected:
        raise RecordError(
            f"{source} has a tensor of shape {shape} and dtype {name} "
            f"that holds {len(data)} bytes instead of {expected}"
        )
    if not data:
        return torch.empty(shape, dtype=DTYPES[name])
    return torch.frombuffer(bytearray(data), dtype=DTYPES[name]).reshape(shape)
