"""What stands around the item of a named record: who wrote it, and how."""

from dataclasses import asdict, fields

from stages.contracts.errors import RecordError
from stages.records.limits import LEAST_NUMBERS
from stages.records.precision import Precision
from stages.records.record_tree import Metadata, Record, Tree, strip_type_hints
from stages.records.tensor_versions import restore_tensors

BURN_VERSION = "0.21.0"
"""The newest Burn that reads and writes these files, and the one that ours claim to be from."""

UNIT: tuple[()] = ()
"""Burn's ``_b``, a struct with nothing in it: an empty array in MessagePack, null in JSON."""

_MEMORY = {"BinBytesRecorder": ", alloc::vec::Vec<u8>", "NamedMpkBytesRecorder": ""}
"""Recorders in memory, with what their type's name says after the settings."""


def build_metadata(recorder: str, precision: Precision) -> Metadata:
    """What Burn's *recorder* (the name of its type, as ``NamedMpkGzFileRecorder``) says in *precision*."""
    module = "memory" if recorder in _MEMORY else "file"
    settings = f"burn_core::record::settings::{precision.settings}{_MEMORY.get(recorder, '')}"
    return Metadata(
        float=precision.float_type,
        int=precision.int_type,
        format=f"burn_core::record::{module}::{recorder}<{settings}>",
        version=BURN_VERSION,
        settings=precision.settings,
    )


def pack_record(record: Record) -> Tree:
    """The whole tree of a named file for *record*, in Burn's order. Raises `RecordError` without metadata.

    ``_b`` is there for Burn 0.12 to 0.21, which ask for it; those before pass over it.
    """
    if record.metadata is None:
        raise RecordError(
            "a record without metadata cannot be written in Burn's named formats: give it what "
            "build_metadata() says, or choose burnpack or safetensors"
        )
    return {"metadata": asdict(record.metadata), "item": strip_type_hints(record.item), "_b": UNIT}


def unpack_record(tree: Tree, source_name: str, *, max_numbers: int = LEAST_NUMBERS) -> Record:
    """Return the record in *tree*, the content of the file *source_name*, of any Burn from 0.9 to 0.21.

    Its tensors become `RawTensor`; lists may hold *max_numbers* numbers. Other keys are ignored. Raises
    `RecordError` for anything else.
    """
    if not isinstance(tree, dict) or not {"metadata", "item"} <= tree.keys():
        found = f"keys {sorted(tree)[:8]}" if isinstance(tree, dict) else f"a {type(tree).__name__}"
        raise RecordError(
            f"{source_name} is no record of Burn: expected 'metadata' and 'item', there is {found}"
        )
    marker = tree.get("_b")
    if not (marker is None or (isinstance(marker, list | tuple) and not marker)):
        raise RecordError(
            f"{source_name}, _b: expected an empty array or nil, as Burn, there is a {type(marker).__name__}"
        )
    metadata = _metadata(tree["metadata"], source_name)
    item = restore_tensors(tree["item"], metadata, source_name, max_numbers=max_numbers)
    return Record(item, metadata)


def _metadata(node: Tree, source_name: str) -> Metadata:
    if not isinstance(node, dict):
        raise RecordError(f"{source_name}, metadata: expected a map, there is a {type(node).__name__}")
    texts = {field.name: node.get(field.name) for field in fields(Metadata)}
    wrong = [name for name, text in texts.items() if not isinstance(text, str)]
    if wrong:
        raise RecordError(
            f"{source_name}, metadata: {', '.join(wrong)} should be text, and Burn asks for all of "
            f"{', '.join(texts)}: there are {sorted(node)[:8]}"
        )
    return Metadata(**{name: str(text) for name, text in texts.items()})
