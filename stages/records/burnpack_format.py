"""Burnpack, Burn's own tensor format since 0.19: a header, a CBOR map of the tensors, and their bytes.

Each tensor begins at a multiple of 256; files of Burn 0.19, which have no padding, can be read too. Names in
the file are dotted; the record's item is the tree that they describe. The file stores the id of a parameter,
which is ``{"id": …, "param": tensor}`` in the tree; a tensor without an id is a leaf itself. Nil constants
are not stored, so they are missing when the file is read.
"""

import struct
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from stages.contracts.errors import RecordError
from stages.records import cbor, tensor_data
from stages.records.byte_readers import ByteReader
from stages.records.dotted_names import (
    MAX_ENTRIES,
    check_text,
    decode_param_id,
    encode_param_id,
    flatten,
    is_parameter,
    unflatten,
)
from stages.records.record_tree import (
    BOOL_STORES,
    ITEM_SIZES,
    MAX_DIMENSIONS,
    RawTensor,
    Record,
    Signed,
    Tree,
)
from stages.records.tensor_data import TensorEntry

MAGIC = b"NRUB"
VERSION = 1
ALIGNMENT = 256
HEADER = struct.Struct("<4sHI")
MAX_METADATA = 100 << 20
"""Bytes of the CBOR map: Burn's own limit."""

Scalar = bool | int | float


@dataclass(frozen=True)
class Content:
    """The content of a file without the data of its tensors, by dotted name."""

    entries: dict[str, TensorEntry] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)


def decode(source: ByteReader, *, keep_data: bool = True) -> Record:
    """Return the record in *source*; bytes after the last tensor are not read.

    Raises `RecordError` if *source* is not a valid burnpack file.
    """
    content = _read_metadata(source)
    _skip_padding(source, content.entries)
    tensors = tensor_data.read_section(source, content.entries, keep_data=keep_data)
    leaves: dict[str, Tree] = {
        _rename(name, ".lora.", "_lora.", tensors): (
            {"id": encode_param_id(content.ids[name]), "param": tensor} if name in content.ids else tensor
        )
        for name, tensor in tensors.items()
    }
    for name, value in content.scalars.items():
        if name in leaves:
            raise RecordError(f"{source.name} has both a tensor and a scalar with the name {name!r}")
        leaves[name] = value
    return Record(unflatten(leaves, source.name), extra=content.extra or None)


def _rename(name: str, before: str, after: str, names: Container[str]) -> str:
    """Return *name* with *after* for *before* if it is that of an adapter of a tensor in *names*.

    The names of LoRA adapters are below that of their tensor, which no tree can have.
    """
    owner, mark, part = name.rpartition(before)
    return f"{owner}{after}{part}" if mark and owner in names else name


def padding(position: int) -> int:
    """Return the number of bytes from *position* to the next multiple of the alignment."""
    return -position % ALIGNMENT


def _read_metadata(source: ByteReader) -> Content:
    """Return the content of the header and the CBOR map, without the data of the tensors."""
    magic, version, size = HEADER.unpack(source.read(HEADER.size))
    if magic != MAGIC:
        raise RecordError(f"{source.name} is not a burnpack file: it starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise RecordError(f"{source.name} is burnpack version {version}; only version {VERSION} is supported")
    if size > MAX_METADATA:
        raise RecordError(
            f"{source.name} declares {size} bytes of names, but at most {MAX_METADATA} are allowed"
        )
    parser = cbor.CborParser(source.read(size), source.name, offset=source.offset - size)
    content = Content()
    parts: dict[str, Callable[[cbor.CborParser, str], None]] = {
        "tensors": lambda parser, name: _read_descriptor(parser, name, content),
        "metadata": lambda parser, key: content.extra.update({key: parser.text()}),
        "scalars": lambda parser, name: content.scalars.update({name: _read_scalar(parser)}),
    }
    for part in _iter_keys(parser):
        if part not in parts:
            parser.skip()
            continue
        for name in _iter_keys(parser):
            parts[part](parser, name)
    parser.finish()
    return content


def _iter_keys(parser: cbor.CborParser) -> Iterator[str]:
    """Yield the keys of the next map; the caller must read the value of each key before the next key."""
    seen = set()
    for _ in range(parser.count(cbor.MAP, MAX_ENTRIES)):
        key = parser.text()
        if key in seen:
            raise parser.error(f"duplicate name {key[:100]!r}")
        seen.add(key)
        yield key


def _read_descriptor(parser: cbor.CborParser, name: str, content: Content) -> None:
    dtype, shape, offsets, width = None, None, None, 0
    for key in _iter_keys(parser):
        if key == "dtype":
            dtype, width = _read_dtype(parser, name)
        elif key == "shape":
            shape = tuple(parser.unsigned() for _ in range(parser.count(cbor.ARRAY, MAX_DIMENSIONS)))
        elif key == "data_offsets":
            offsets = [parser.unsigned() for _ in range(parser.count(cbor.ARRAY, 2))]
        elif key == "param_id":
            content.ids[name] = parser.unsigned()
        else:
            parser.skip()
    if dtype is None or shape is None or offsets is None or len(offsets) != 2:
        raise parser.error(f"{name} must have a dtype, a shape and two data_offsets")
    content.entries[name] = TensorEntry(dtype, shape, offsets[0], offsets[1], width)


def _read_dtype(parser: cbor.CborParser, name: str) -> tuple[str, int]:
    """Return the dtype's name and the bytes of one element in the file."""
    if parser.kind() == cbor.TEXT:
        dtype = parser.text()
    else:
        if parser.count(cbor.MAP, 1) != 1:
            raise parser.error(f"{name} has a dtype without a name")
        dtype = parser.text()
        if dtype != "Bool":
            raise parser.error(
                f"{name} has the unsupported dtype {dtype[:100]}; if it is quantized, dequantize it in Burn "
                "first"
            )
        store = parser.text()
        if store not in BOOL_STORES:
            raise parser.error(
                f"{name} is Bool stored as {store[:100]!r}; expected one of {', '.join(BOOL_STORES)}"
            )
        return "Bool", BOOL_STORES[store]
    if dtype not in ITEM_SIZES:
        raise parser.error(
            f"{name} has the unknown dtype {dtype[:100]!r}; expected one of {', '.join(ITEM_SIZES)}"
        )
    return ("F32" if dtype == "Flex32" else dtype), ITEM_SIZES[dtype]


def _read_scalar(parser: cbor.CborParser) -> Scalar:
    kind = parser.text() if parser.count(cbor.MAP, 1) == 1 else ""
    if kind == "Int":
        value = parser.integer()
        if not -(1 << 63) <= value < 1 << 63:
            raise parser.error(f"{value} does not fit into 64 bits")
        return Signed(value)
    if kind == "UInt":
        return parser.unsigned()
    if kind in {"Float", "Bool"} and isinstance(number := parser.simple(), bool) == (kind == "Bool"):
        return number
    raise parser.error(f"a scalar must be an Int, UInt, Float or Bool, found {kind[:100]!r}")


def _skip_padding(source: ByteReader, entries: dict[str, TensorEntry]) -> None:
    """Skip the bytes up to the data section.

    The section starts at the next multiple of 256; in Burn 0.19 it follows immediately. A file of 0.19 ends
    after exactly the bytes of its tensors. A truncated newer file can have that length too, but then its
    bytes up to the multiple are zero.
    """
    position = 0
    contiguous = True
    for _, entry in tensor_data.sort_entries(entries):
        contiguous = contiguous and entry.start == position
        position = entry.end
    may_be_old = contiguous and source.remaining() == position
    gap = padding(source.offset)
    if may_be_old and (not gap or any(source.peek(gap))):
        return
    source.skip(min(gap, position) if may_be_old else gap)
    for name, entry in entries.items():
        if entry.start % ALIGNMENT:
            raise RecordError(
                f"{source.name}: {name} begins at {entry.start}, which is not a multiple of {ALIGNMENT}"
            )


def encode(record: Record) -> Iterator[bytes | memoryview]:
    """Yield the bytes of *record* in pieces: tensors in the tree's order, numbers as scalars.

    Raises `RecordError` if the tree has text or bytes; store text in `Record.extra`.
    """
    tensors, descriptors, scalars = _describe_leaves(record.item)
    extra = dict(sorted((record.extra or {}).items()))
    for text in (*extra, *extra.values()):
        check_text(text, "the record")
    _check_counts({"tensors": tensors, "numbers": scalars, "texts": extra})
    renamed = {_rename(name, "_lora.", ".lora.", tensors): entry for name, entry in descriptors.items()}
    parts: dict[str, Any] = {
        "tensors": dict(sorted(renamed.items())),
        "metadata": extra,
        "scalars": dict(sorted(scalars.items())),
    }
    metadata = b"".join(
        cbor.encode({name: part for name, part in parts.items() if part or name == "tensors"})
    )
    if len(metadata) > MAX_METADATA:
        raise RecordError(
            f"the record's names take {len(metadata)} bytes, but burnpack allows at most {MAX_METADATA}"
        )
    head = HEADER.pack(MAGIC, VERSION, len(metadata)) + metadata
    yield head + bytes(padding(len(head)))
    position = 0
    for tensor in tensors.values():
        gap = padding(position)
        yield bytes(gap)
        yield from tensor_data.iter_bytes(tensor)
        position += gap + tensor.nbytes


def _check_counts(parts: dict[str, dict[str, Any]]) -> None:
    """Raise `RecordError` if there are more entries than a reader accepts."""
    for kind, entries in parts.items():
        if len(entries) > MAX_ENTRIES:
            raise RecordError(
                f"the record has {len(entries)} {kind}, but at most {MAX_ENTRIES} can be read back"
            )
    unflatten(dict.fromkeys([*parts["tensors"], *parts["numbers"]]), "the record")


def _describe_leaves(item: Tree) -> tuple[dict[str, RawTensor], dict[str, cbor.Value], dict[str, cbor.Value]]:
    """Return the tensors of *item*, their descriptors, and those of its numbers, by name."""
    tensors: dict[str, RawTensor] = {}
    descriptors: dict[str, cbor.Value] = {}
    scalars: dict[str, cbor.Value] = {}
    position = 0
    for name, leaf in flatten(item):
        if isinstance(leaf, bool | int | float):
            scalars[name] = _describe_scalar(leaf)
            continue
        tensor = leaf["param"] if is_parameter(leaf) else leaf
        if not isinstance(tensor, RawTensor):
            raise RecordError(
                f"{name} is a {type(leaf).__name__}, but burnpack stores only tensors and numbers"
            )
        start = position + padding(position)
        position = start + tensor.nbytes
        tensors[name] = tensor
        descriptor: dict[str, cbor.Value] = {
            "dtype": {"Bool": "Native"} if tensor.dtype == "Bool" else tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, position],
        }
        if tensor is not leaf:
            descriptor["param_id"] = decode_param_id(leaf["id"])
        descriptors[name] = descriptor
    return tensors, descriptors, scalars


def _describe_scalar(value: Scalar) -> cbor.Value:
    if isinstance(value, bool):
        return {"Bool": value}
    if isinstance(value, float):
        return {"Float": value}
    return {"Int": int(value)} if isinstance(value, Signed) or value < 0 else {"UInt": value}
