"""Reader of ``.pt`` and ``.pth`` files: the zip archives of `torch.save`, and its format before torch 1.6.

No code of the file is executed: see `pickle_program`. This module does not import torch.
"""

import struct
import zipfile
from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from stages.contracts.errors import RecordError
from stages.records.dotted_names import MAX_ENTRIES, unflatten
from stages.records.pickle_program import ADVICE, TensorRef, evaluate
from stages.records.record_tree import ITEM_SIZES, NUMPY, RawTensor, Tree
from stages.records.tensor_data import check_shape

SUFFIXES = (".pt", ".pth")
NESTS = ("state_dict", "model_state_dict", "model")
"""The entries in which training programs store the state dict beside other values, in the order tried."""
MAX_PICKLE = 256 * 2**20
"""Bytes of the pickle, without the tensors."""
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_ZIP_START = b"PK\x03\x04"
Buffers = dict[str, memoryview]


def is_torch_file(path: Path) -> bool:
    """Return True if the suffix of *path* is that of a file of `torch.save`."""
    return path.name.endswith(SUFFIXES)


def read_state_dict(path: Path, *, key: str | None = None) -> Tree:
    """Return the tree of the tensors in the state dict at *path*, by their dotted names.

    The state dict is the value of the file if it has a tensor, and otherwise its first entry in `NESTS`;
    *key* names another entry, with dots for an entry within an entry. Values that are not tensors are
    ignored. Raises `RecordError` if the file is missing, corrupt, or contains more than plain values.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_ZIP_START))
        value, buffers = _read_zip(path) if start == _ZIP_START else _read_legacy(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, RuntimeError) as error:
        raise RecordError(f"{path} is not an intact file of torch.save: {error!s:.200}") from error
    tensors = {
        name: _load_tensor(tensor, buffers, f"{path}: {name}")
        for name, tensor in _select_state(value, key, str(path)).items()
        if isinstance(tensor, TensorRef)
    }
    if len(tensors) > MAX_ENTRIES:
        raise RecordError(f"{path} has {len(tensors)} tensors, but at most {MAX_ENTRIES} are allowed")
    return unflatten(tensors, str(path))


def _read_zip(path: Path) -> tuple[Any, Buffers]:
    """Return the value of a zip archive, and the bytes of its storages."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if "constants.pkl" in entries or "data.pkl" not in entries:
            raise RecordError(f"{path} is a zip archive without a state dict. {ADVICE}")
        is_stored = all(
            entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
            for entry in entries.values()
        )
        if not is_stored or sum(entry.file_size for entry in entries.values()) > size:
            raise RecordError(f"{path}: its entries are compressed or overlap, unlike those of torch.save")
        if entries["data.pkl"].file_size > MAX_PICKLE:
            raise RecordError(f"{path}: its pickle has more than {MAX_PICKLE} bytes. {ADVICE}")
        if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
            raise RecordError(f"{path} was saved on a big-endian machine. {ADVICE}")
        value = evaluate(BytesIO(archive.read(entries["data.pkl"])), str(path))
        buffers = {
            name.removeprefix("data/"): memoryview(bytearray(archive.read(entry)))
            for name, entry in entries.items()
            if name.startswith("data/") and not entry.is_dir()
        }
    return value, buffers


def _read_legacy(path: Path) -> tuple[Any, Buffers]:
    """Return the value of a file in the format before torch 1.6, and the bytes of its storages."""
    file = BytesIO(path.read_bytes())
    magic, version, system, value, keys = (evaluate(file, str(path)) for _ in range(5))
    if magic != _MAGIC_NUMBER or version != 1001 or not isinstance(keys, list):
        raise RecordError(f"{path} is not a file of torch.save. {ADVICE}")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise RecordError(f"{path} was saved on a big-endian machine. {ADVICE}")
    sizes = {tensor.storage.key: ITEM_SIZES[tensor.storage.dtype] for tensor in _iter_tensors(value)}
    buffers = {}
    for key in keys:
        numel = int.from_bytes(file.read(8), "little")
        size = numel * sizes.get(key, 0)
        if key not in sizes or size > len(file.getbuffer()) - file.tell():
            raise RecordError(f"{path} is truncated, or has a storage that no tensor references")
        buffers[key] = memoryview(bytearray(file.read(size)))
    return value, buffers


def _iter_tensors(value: Any) -> list[TensorRef]:
    """Return the tensors in nested mappings and lists; each container is visited once."""
    tensors, waiting, seen = [], [value], set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, TensorRef):
            tensors.append(node)
        elif isinstance(node, dict | list | tuple) and id(node) not in seen:
            seen.add(id(node))
            waiting += node.values() if isinstance(node, dict) else node
    return tensors


def _select_state(value: Any, key: str | None, where: str) -> Mapping[str, Any]:
    """Return the state dict in *value*."""
    for part in key.split(".") if key is not None else ():
        if not isinstance(value, dict) or part not in value:
            raise RecordError(f"{where} has no entry {key!r}; {_describe(value)}. Correct key")
        value = value[part]
    candidates = [value]
    if key is None and isinstance(value, dict):
        candidates += [value[nest] for nest in NESTS if nest in value]
    for candidate in candidates:
        if isinstance(candidate, dict) and any(
            isinstance(tensor, TensorRef) for tensor in candidate.values()
        ):
            return {str(name): tensor for name, tensor in candidate.items()}
    raise RecordError(f"{where} has no state dict; {_describe(value)}. Set key to the entry that has one")


def _describe(value: Any) -> str:
    if not isinstance(value, dict):
        return f"found a {type(value).__name__}"
    names = [str(name)[:50] for name in value]
    return f"found the entries {', '.join(names[:10])}" + (" …" if len(names) > 10 else "")


def _load_tensor(tensor: TensorRef, buffers: Buffers, where: str) -> RawTensor:
    """Return *tensor* over the memory of its storage. Raises `RecordError` if it exceeds its storage."""
    data = buffers.get(tensor.storage.key)
    declared = tensor.storage.numel * ITEM_SIZES[tensor.storage.dtype]
    if data is None or data.nbytes != declared:
        size_found = "none" if data is None else str(data.nbytes)
        raise RecordError(f"{where}: its storage must have {declared} bytes, found {size_found}")
    size = ITEM_SIZES[tensor.dtype]
    pairs = list(zip(tensor.shape, tensor.stride, strict=True))
    numel = check_shape(tensor.shape, where)
    last = tensor.offset + sum((length - 1) * stride for length, stride in pairs)
    if numel and (numel * size > data.nbytes or (last + 1) * size > data.nbytes):
        remedy = (
            ". Save tensor.contiguous() instead of a tensor that expand() made" if 0 in tensor.stride else ""
        )
        raise RecordError(f"{where}: its shape {list(tensor.shape)} exceeds its storage{remedy}")
    if not numel:
        return RawTensor.of(tensor.dtype, tensor.shape, b"")
    return RawTensor(tensor.dtype, tensor.shape, partial(_view_strided, tensor, data))


def _view_strided(tensor: TensorRef, data: memoryview) -> tuple[memoryview]:
    """Return the bytes of *tensor*, copied only if they are not contiguous in *data*."""
    size = ITEM_SIZES[tensor.dtype]
    flat = np.frombuffer(data, NUMPY[tensor.dtype], data.nbytes // size)[tensor.offset :]
    strides = tuple(stride * size for stride in tensor.stride)
    view = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides)
    return (np.ascontiguousarray(view).reshape(-1).view(np.uint8).data,)
