"""Burnpack (``.bpk``): a header, a CBOR map that describes the tensors, and their bytes at multiples of 256.

Names are flat in the file and dotted; the record's item is the tree that they spell. A parameter has its id
in the file, so it is ``{"id": …, "param": tensor}`` in the tree; a tensor with none stands there alone. Nil
constants have no place in the file, and are not there when it is read. Files of Burn 0.19, which have their
tensors without gaps, are read too.
"""

from collections.abc import Iterator

from stages.contracts.errors import RecordError
from stages.records import data_section
from stages.records import dotted_names as flat
from stages.records.burnpack import cbor
from stages.records.burnpack.reader import (
    HEADER,
    MAGIC,
    MAX_METADATA,
    VERSION,
    Content,
    Scalar,
    gap,
)
from stages.records.data_section import TensorEntry
from stages.records.param_ids import decode_param_id
from stages.records.record_tree import RawTensor, Record, Signed


def encode(record: Record) -> Iterator[bytes | memoryview]:
    """The bytes of *record*, in pieces: its tensors in the tree's order, its numbers as scalars.

    Raises `RecordError` where the tree holds text or bytes, which belong into `Record.extra`.
    """
    content = _flat(record)
    _check_counts(content)
    described = b"".join(cbor.encode(_described(content)))
    if len(described) > MAX_METADATA:
        raise RecordError(f"the record's names take {len(described)} bytes, burnpack ends at {MAX_METADATA}")
    head = HEADER.pack(MAGIC, VERSION, len(described)) + described
    yield head + bytes(gap(len(head)))
    position = 0
    for name, tensor in content.tensors.items():
        yield bytes(content.places[name].start - position)
        yield from data_section.iter_bytes(tensor, name)
        position = content.places[name].end


def _check_counts(content: Content) -> None:
    """Raise `RecordError` for more entries than a reader accepts."""
    for kind, entries in (
        ("tensors", content.tensors),
        ("numbers", content.scalars),
        ("texts", content.extra),
    ):
        if len(entries) > flat.MAX_ENTRIES:
            raise RecordError(
                f"the record has {len(entries)} {kind}, at most {flat.MAX_ENTRIES} can be read back"
            )
    flat.unflatten(dict.fromkeys([*content.tensors, *content.scalars]), "the record")


def _flat(record: Record) -> Content:
    extra = {flat.check_text(key, "the record"): text for key, text in (record.extra or {}).items()}
    content = Content(extra={key: flat.check_text(text, "the record") for key, text in extra.items()})
    position = 0
    for name, leaf in flat.flatten(record.item):
        if name in content.tensors or name in content.scalars:
            raise RecordError(f"two values of the record have the name {name!r}")
        if isinstance(leaf, bool | int | float):
            content.scalars[name] = leaf
            continue
        tensor = leaf["param"] if flat.is_parameter(leaf) else leaf
        if not isinstance(tensor, RawTensor):
            raise RecordError(f"{name} is a {type(leaf).__name__}: burnpack holds tensors and numbers only")
        if tensor is not leaf:
            content.ids[name] = decode_param_id(leaf["id"])
        start = position + gap(position)
        position = start + tensor.nbytes
        content.tensors[name] = tensor
        content.places[name] = TensorEntry(tensor.dtype, tensor.shape, start, position)
    return content


def _described(content: Content) -> cbor.Value:
    described: dict[str, cbor.Value] = {
        "tensors": {name: _descriptor(content, name) for name in sorted(content.tensors)}
    }
    if content.extra:
        described["metadata"] = {key: content.extra[key] for key in sorted(content.extra)}
    if content.scalars:
        described["scalars"] = {name: _kind_of(content.scalars[name]) for name in sorted(content.scalars)}
    return described


def _descriptor(content: Content, name: str) -> cbor.Value:
    place = content.places[name]
    descriptor: dict[str, cbor.Value] = {
        "dtype": {"Bool": "Native"} if place.dtype == "Bool" else place.dtype,
        "shape": list(place.shape),
        "data_offsets": [place.start, place.end],
    }
    if name in content.ids:
        descriptor["param_id"] = content.ids[name]
    return descriptor


def _kind_of(value: Scalar) -> cbor.Value:
    if isinstance(value, bool):
        return {"Bool": value}
    if isinstance(value, float):
        return {"Float": value}
    return {"Int": int(value)} if isinstance(value, Signed) or value < 0 else {"UInt": value}
