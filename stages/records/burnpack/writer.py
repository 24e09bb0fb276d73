"""Burnpack writer (``.bpk``): a header, a CBOR map of the tensors, and their bytes at multiples of 256.

Names in the file are dotted; the record's item is the tree that they describe. The file stores the id of a
parameter, which is ``{"id": …, "param": tensor}`` in the tree; a tensor without an id is a leaf itself. Nil
constants are not stored, so they are missing when the file is read.
"""

from collections.abc import Iterator

from stages.contracts.errors import RecordError
from stages.records import data_section
from stages.records.burnpack import cbor
from stages.records.burnpack.reader import HEADER, MAGIC, MAX_METADATA, VERSION, Content, Scalar, padding
from stages.records.data_section import TensorEntry
from stages.records.dotted_names import MAX_ENTRIES, check_text, flatten, is_parameter, unflatten
from stages.records.param_ids import decode_param_id
from stages.records.record_tree import RawTensor, Record, Signed


def encode(record: Record) -> Iterator[bytes | memoryview]:
    """Yield the bytes of *record* in pieces: tensors in the tree's order, numbers as scalars.

    Raises `RecordError` if the tree has text or bytes; store text in `Record.extra`.
    """
    content = _collect(record)
    _check_counts(content)
    metadata = b"".join(cbor.encode(_describe(content)))
    if len(metadata) > MAX_METADATA:
        raise RecordError(
            f"the record's names take {len(metadata)} bytes, but burnpack allows at most {MAX_METADATA}"
        )
    head = HEADER.pack(MAGIC, VERSION, len(metadata)) + metadata
    yield head + bytes(padding(len(head)))
    position = 0
    for name, tensor in content.tensors.items():
        yield bytes(content.entries[name].start - position)
        yield from data_section.iter_bytes(tensor, name)
        position = content.entries[name].end


def _check_counts(content: Content) -> None:
    """Raise `RecordError` if there are more entries than a reader accepts."""
    for kind, entries in (
        ("tensors", content.tensors),
        ("numbers", content.scalars),
        ("texts", content.extra),
    ):
        if len(entries) > MAX_ENTRIES:
            raise RecordError(
                f"the record has {len(entries)} {kind}, but at most {MAX_ENTRIES} can be read back"
            )
    unflatten(dict.fromkeys([*content.tensors, *content.scalars]), "the record")


def _collect(record: Record) -> Content:
    """Return the tensors, scalars and texts of *record* by name, with the positions of the tensors."""
    extra = {check_text(key, "the record"): text for key, text in (record.extra or {}).items()}
    content = Content(extra={key: check_text(text, "the record") for key, text in extra.items()})
    position = 0
    for name, leaf in flatten(record.item):
        if name in content.tensors or name in content.scalars:
            raise RecordError(f"two values of the record have the name {name!r}")
        if isinstance(leaf, bool | int | float):
            content.scalars[name] = leaf
            continue
        tensor = leaf["param"] if is_parameter(leaf) else leaf
        if not isinstance(tensor, RawTensor):
            raise RecordError(
                f"{name} is a {type(leaf).__name__}, but burnpack stores only tensors and numbers"
            )
        if tensor is not leaf:
            content.ids[name] = decode_param_id(leaf["id"])
        start = position + padding(position)
        position = start + tensor.nbytes
        content.tensors[name] = tensor
        content.entries[name] = TensorEntry(tensor.dtype, tensor.shape, start, position)
    return content


def _describe(content: Content) -> cbor.Value:
    """Return the CBOR map of *content*."""
    described: dict[str, cbor.Value] = {
        "tensors": {name: _describe_tensor(content, name) for name in sorted(content.tensors)}
    }
    if content.extra:
        described["metadata"] = {key: content.extra[key] for key in sorted(content.extra)}
    if content.scalars:
        described["scalars"] = {
            name: _describe_scalar(content.scalars[name]) for name in sorted(content.scalars)
        }
    return described


def _describe_tensor(content: Content, name: str) -> cbor.Value:
    entry = content.entries[name]
    descriptor: dict[str, cbor.Value] = {
        "dtype": {"Bool": "Native"} if entry.dtype == "Bool" else entry.dtype,
        "shape": list(entry.shape),
        "data_offsets": [entry.start, entry.end],
    }
    if name in content.ids:
        descriptor["param_id"] = content.ids[name]
    return descriptor


def _describe_scalar(value: Scalar) -> cbor.Value:
    if isinstance(value, bool):
        return {"Bool": value}
    if isinstance(value, float):
        return {"Float": value}
    return {"Int": int(value)} if isinstance(value, Signed) or value < 0 else {"UInt": value}
