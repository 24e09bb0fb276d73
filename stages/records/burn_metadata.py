"""The metadata that Burn stores next to the item of a record: the program that wrote it, and how."""

from dataclasses import asdict, fields

from stages.contracts.errors import RecordError
from stages.records.limits import LEAST_NUMBERS
from stages.records.precision import Precision
from stages.records.record_tree import Metadata, Record, Tree, strip_type_hints
from stages.records.tensor_versions import restore_tensors

BURN_VERSION = "0.21.0"
"""Version of Burn that written files declare: the newest that reads and writes these formats."""

UNIT: tuple[()] = ()
"""Burn's ``_b``, an empty struct: an empty array in MessagePack, null in JSON."""

_BYTES_RECORDERS = {"BinBytesRecorder": ", alloc::vec::Vec<u8>", "NamedMpkBytesRecorder": ""}
"""In-memory recorders, with the suffix of their Rust type name after the settings."""


def build_metadata(recorder: str, precision: Precision) -> Metadata:
    """Return the metadata of Burn's *recorder* (a type name such as ``NamedMpkGzFileRecorder``)."""
    module = "memory" if recorder in _BYTES_RECORDERS else "file"
    settings = f"burn_core::record::settings::{precision.settings}{_BYTES_RECORDERS.get(recorder, '')}"
    return Metadata(
        float=precision.float_type,
        int=precision.int_type,
        format=f"burn_core::record::{module}::{recorder}<{settings}>",
        version=BURN_VERSION,
        settings=precision.settings,
    )


def pack_record(record: Record) -> Tree:
    """Return the tree of a MessagePack or JSON file for *record*, with Burn's keys in Burn's order.

    ``_b`` is included because Burn 0.12 to 0.21 require it; earlier versions ignore it. Raises `RecordError`
    if *record* has no metadata.
    """
    if record.metadata is None:
        raise RecordError(
            "a record without metadata cannot be written as MessagePack or JSON; set its metadata with "
            "build_metadata(), or use burnpack or safetensors"
        )
    return {"metadata": asdict(record.metadata), "item": strip_type_hints(record.item), "_b": UNIT}


def unpack_record(tree: Tree, source_name: str, *, max_numbers: int = LEAST_NUMBERS) -> Record:
    """Return the record in *tree*, the content of a file that any Burn from 0.9 to 0.21 wrote.

    Its tensors become `RawTensor`. Lists outside tensors may have *max_numbers* numbers. Unknown keys are
    ignored. *source_name* names the file in errors. Raises `RecordError` if *tree* is not a record.
    """
    if not isinstance(tree, dict) or not {"metadata", "item"} <= tree.keys():
        found = f"keys {sorted(tree)[:8]}" if isinstance(tree, dict) else f"a {type(tree).__name__}"
        raise RecordError(
            f"{source_name} is not a Burn record: expected the keys 'metadata' and 'item', found {found}"
        )
    marker = tree.get("_b")
    if not (marker is None or (isinstance(marker, list | tuple) and not marker)):
        raise RecordError(
            f"{source_name}, _b: expected an empty array or nil, found a {type(marker).__name__}"
        )
    metadata = _read_metadata(tree["metadata"], source_name)
    item = restore_tensors(tree["item"], metadata, source_name, max_numbers=max_numbers)
    return Record(item, metadata)


def _read_metadata(node: Tree, source_name: str) -> Metadata:
    if not isinstance(node, dict):
        raise RecordError(f"{source_name}, metadata: expected a map, found a {type(node).__name__}")
    texts = {field.name: node.get(field.name) for field in fields(Metadata)}
    wrong = [name for name, text in texts.items() if not isinstance(text, str)]
    if wrong:
        raise RecordError(
            f"{source_name}, metadata: {', '.join(wrong)} must be text; Burn requires all of "
            f"{', '.join(texts)}, found {sorted(node)[:8]}"
        )
    return Metadata(**{name: str(text) for name, text in texts.items()})
