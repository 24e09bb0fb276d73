"""Reading burnpack: what the header and the CBOR map say, and where the tensors begin."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stages.contracts.errors import RecordError
from stages.records import data_section
from stages.records import dotted_names as flat
from stages.records.burnpack import cbor
from stages.records.byte_readers import Blob, ByteReader
from stages.records.data_section import BOOL_STORES, TensorEntry
from stages.records.dotted_names import MAX_ENTRIES
from stages.records.dtypes import ITEM_SIZES
from stages.records.param_ids import encode_param_id
from stages.records.record_tree import RawTensor, Record, Signed, Tree

MAGIC = b"NRUB"
VERSION = 1
ALIGNMENT = 256
HEADER = struct.Struct("<4sHI")
MAX_METADATA = 100 << 20
"""Bytes of the CBOR map: Burn's own limit."""

Scalar = bool | int | float


@dataclass(frozen=True)
class Content:
    """A record as the file has it: flat."""

    tensors: dict[str, RawTensor] = field(default_factory=dict)
    places: dict[str, TensorEntry] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)


def decode(source: ByteReader, *, keep_data: bool = True) -> Record:
    """The record in *source*, which is left after the last tensor. Raises `RecordError` for anything else."""
    content = metadata(source)
    tensors = data_section.read_section(data(source, content.places), content.places, keep_data=keep_data)
    leaves: dict[str, Tree] = {
        name: {"id": encode_param_id(content.ids[name]), "param": tensor} if name in content.ids else tensor
        for name, tensor in tensors.items()
    }
    for name, value in content.scalars.items():
        if name in leaves:
            raise RecordError(f"{source.name} has a tensor and a scalar of the name {name!r}")
        leaves[name] = value
    return Record(flat.unflatten(leaves, source.name), extra=content.extra or None)


def gap(position: int) -> int:
    """Bytes from *position* to the next multiple of the alignment."""
    return -position % ALIGNMENT


def metadata(source: ByteReader) -> Content:
    """What stands before the data section, checked as far as it can be without the data."""
    magic, version, size = HEADER.unpack(source.read(HEADER.size))
    if magic != MAGIC:
        raise RecordError(f"{source.name} is no burnpack: it begins {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise RecordError(f"{source.name} is burnpack of version {version}, only {VERSION} is known")
    if size > MAX_METADATA:
        raise RecordError(f"{source.name} declares {size} bytes of names, at most {MAX_METADATA} are read")
    reader = cbor.Reader(source.read(size), source.name, offset=source.offset - size)
    content = Content()
    parts: dict[str, Callable[[cbor.Reader, str], None]] = {
        "tensors": lambda reader, name: _read_descriptor(reader, name, content),
        "metadata": lambda reader, key: content.extra.update({key: reader.text()}),
        "scalars": lambda reader, name: content.scalars.update({name: _read_scalar(reader)}),
    }
    for part in _keys(reader):
        if part not in parts:
            reader.skip()
            continue
        for name in _keys(reader):
            parts[part](reader, name)
    reader.finish()
    return content


def _keys(reader: cbor.Reader) -> Iterator[str]:
    """The keys of the map that comes next; whoever asks for one takes its value before the next."""
    seen = set()
    for _ in range(reader.entries(MAX_ENTRIES)):
        key = reader.text()
        if key in seen:
            raise reader.error(f"the name {key[:100]!r} is there twice")
        seen.add(key)
        yield key


def _read_descriptor(reader: cbor.Reader, name: str, content: Content) -> None:
    dtype, shape, offsets, width = None, None, None, 0
    for key in _keys(reader):
        if key == "dtype":
            dtype, width = _read_dtype(reader, name)
        elif key == "shape":
            shape = tuple(reader.unsigned() for _ in range(reader.items(data_section.MAX_RANK)))
        elif key == "data_offsets":
            offsets = [reader.unsigned() for _ in range(reader.items(2))]
        elif key == "param_id":
            content.ids[name] = reader.unsigned()
        else:
            reader.skip()
    if dtype is None or shape is None or offsets is None or len(offsets) != 2:
        raise reader.error(f"{name} must have a dtype, a shape and two data_offsets")
    content.places[name] = data_section.check_entry(
        TensorEntry(dtype, shape, offsets[0], offsets[1], width), name, where=reader.name
    )


def _read_dtype(reader: cbor.Reader, name: str) -> tuple[str, int]:
    """The dtype's name, and the bytes of one element in the file."""
    if reader.kind() == cbor.TEXT:
        dtype = reader.text()
    else:
        if reader.entries(1) != 1:
            raise reader.error(f"{name} has a dtype of no name")
        dtype = reader.text()
        if dtype != "Bool":
            raise reader.error(
                f"{name} is {dtype[:100]}: where that is quantised, dequantise it in Burn first"
            )
        store = reader.text()
        if store not in BOOL_STORES:
            raise reader.error(
                f"{name} is Bool stored as {store[:100]!r}, known are {', '.join(BOOL_STORES)}"
            )
        return "Bool", BOOL_STORES[store]
    if dtype not in ITEM_SIZES:
        raise reader.error(f"{name} has the unknown dtype {dtype[:100]!r}: known are {', '.join(ITEM_SIZES)}")
    return ("F32" if dtype == "Flex32" else dtype), ITEM_SIZES[dtype]


def _read_scalar(reader: cbor.Reader) -> Scalar:
    kind = reader.text() if reader.entries(1) == 1 else ""
    if kind == "Int":
        value = reader.integer()
        if not -(1 << 63) <= value < 1 << 63:
            raise reader.error(f"{value} is no integer of 64 bits")
        return Signed(value)
    if kind == "UInt":
        return reader.unsigned()
    if kind == "Float":
        return reader.float()
    if kind == "Bool":
        return reader.boolean()
    raise reader.error(f"a scalar is an Int, UInt, Float or Bool, not {kind[:100]!r}")


class _Begun:
    """A source of which *head* was taken already."""

    def __init__(self, source: ByteReader, head: bytes) -> None:
        self.name = source.name
        self.offset = source.offset - len(head)
        self._source = source
        self._head = head

    def read_array(self, size: int) -> Blob:
        first = self._from_head(size)
        rest = self._source.read_array(size - len(first))
        return np.concatenate([np.frombuffer(first, np.uint8), rest]) if first else rest

    def skip(self, size: int) -> None:
        self._source.skip(size - len(self._from_head(size)))

    def _from_head(self, size: int) -> bytes:
        first, self._head = self._head[:size], self._head[size:]
        self.offset += size
        return first


def data(source: ByteReader, places: dict[str, TensorEntry]) -> data_section.SectionReader:
    """*source* where the data section begins: at the next multiple of 256, in Burn 0.19 here and now.

    A file of 0.19 ends with exactly what its tensors take. So may one that lost its end, but that has zeros
    up to the multiple.
    """
    position = 0
    contiguous = True
    for _, place in data_section.sort_entries(places):
        contiguous = contiguous and place.start == position
        position = place.end
    old = contiguous and source.remaining() == position
    padding = gap(source.offset)
    head = source.read(min(padding, position) if old else padding)
    if old and (not padding or any(head)):
        return _Begun(source, head)
    for name, place in places.items():
        if place.start % ALIGNMENT:
            raise RecordError(f"{source.name}: {name} begins at {place.start}, no multiple of {ALIGNMENT}")
    return source
