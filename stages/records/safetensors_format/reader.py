"""Safetensors reader: a file written by `safetensors_format.writer` or by any other program.

A file of another origin becomes the tree that its dotted names describe.
"""

import json
from dataclasses import fields
from typing import Any

from stages.contracts.errors import RecordError
from stages.records import data_section
from stages.records import dotted_names as flat
from stages.records.byte_readers import ByteReader
from stages.records.data_section import TensorEntry
from stages.records.record_tree import Metadata, RawTensor, Record
from stages.records.safetensors_format.skeleton import Put

KEY = "burn"
METADATA = "__metadata__"
MAX_HEADER = 100_000_000
"""Bytes: the reference implementation's limit."""
MAX_KEPT = 250_000
"""Values in the skeleton, where a tensor takes four or so."""
MAX_VALUES = 8 * flat.MAX_ENTRIES + MAX_KEPT
"""Values in the header, where a tensor takes eight."""
BY_SIZE = ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "I8", "U8", "Bool")
"""The order in which the reference implementation writes tensors; then by name."""
NAMES = {dtype: dtype.upper() for dtype in BY_SIZE}
DTYPES = {name: dtype for dtype, name in NAMES.items()}

Json = Any


def decode(source: ByteReader, *, keep_data: bool = True) -> Record:
    """The record in *source*, which is left after the last tensor. Raises `RecordError` for anything else."""
    texts, places = _described(source)
    kept = texts.pop(KEY, None)
    position = 0
    for name, place in data_section.sort_entries(places):
        if place.start != position:
            raise RecordError(
                f"{source.name}: {name} begins at {place.start}, not at {position} with no hole"
            )
        position = place.end
    if position > source.remaining():
        raise RecordError(f"{source.name}: its tensors take {position} bytes, {source.remaining()} are left")
    read = data_section.read_section(source, places, keep_data=keep_data)
    tensors = {name: read[name] for name in places}
    if kept is None:
        return Record(flat.unflatten(tensors, source.name), extra=texts or None)
    return _whole(kept, tensors, texts, source.name)


def _described(source: ByteReader) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """The texts and the tensors of the header."""
    size = int.from_bytes(source.read(8), "little")
    if size > MAX_HEADER:
        raise RecordError(f"{source.name} declares {size} bytes of header, at most {MAX_HEADER} are read")
    text = source.read(size)
    if not text.startswith(b"{"):
        raise RecordError(f"{source.name} is no safetensors: its header begins {text[:8]!r}, not with '{{'")
    where = f"{source.name}, the header"
    header = _parsed(text, where, MAX_VALUES)
    texts = _texts(header.pop(METADATA, {}), where)
    if len(header) > flat.MAX_ENTRIES:
        raise RecordError(f"{where} has {len(header)} tensors, at most {flat.MAX_ENTRIES} are read")
    return texts, {name: _place(entry, name, where) for name, entry in header.items()}


def _parsed(text: bytes, where: str, limit: int) -> Json:
    """The JSON in *text*, with no more values than *limit* and no key twice."""
    values = count_values(text.decode(errors="replace"))
    if values > limit:
        raise RecordError(f"{where} has about {values} values, at most {limit} are read")
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refused)
    except RecursionError as error:
        raise RecordError(f"{where} is nested too deep") from error
    except ValueError as error:
        raise RecordError(f"{where} is not the JSON that it should be: {error!s:.200}") from error


def count_values(text: str) -> int:
    """Return how many values the JSON in *text* has, or a few more."""
    return sum(text.count(mark) for mark in ",[{")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    node = dict(pairs)
    if len(node) != len(pairs):
        raise ValueError("a key is there twice")
    return node


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _texts(node: Json, where: str) -> dict[str, str]:
    if not isinstance(node, dict) or not all(isinstance(value, str) for value in node.values()):
        raise RecordError(f"{where}: its {METADATA} should be texts by name")
    return {flat.check_text(k, where): flat.check_text(value, where) for k, value in node.items()}


def _place(entry: Json, name: str, where: str) -> TensorEntry:
    flat.check_name(name, where)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise RecordError(f"{where}: {name} should have a dtype, a shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise RecordError(f"{where}: {name} has the dtype {dtype!r:.100}, only {', '.join(DTYPES)} are read")
    if not _are_whole(shape) or not _are_whole(offsets) or len(offsets) != 2:
        raise RecordError(f"{where}: {name} should have a shape and two data_offsets of whole numbers from 0")
    return data_section.check_entry(
        TensorEntry(DTYPES[dtype], tuple(shape), offsets[0], offsets[1]), name, where=where
    )


def _are_whole(node: Json) -> bool:
    return isinstance(node, list) and all(type(value) is int and value >= 0 for value in node)


def _whole(text: str, tensors: dict[str, RawTensor], extra: dict[str, str], where: str) -> Record:
    """The record whose skeleton is *text*."""
    where = f"{where}, the metadata {KEY!r}"
    kept = _parsed(text.encode(), where, MAX_KEPT)
    if not isinstance(kept, dict) or kept.keys() != {"metadata", "item"}:
        raise RecordError(f"{where} should hold a record's metadata and item")
    metadata = kept["metadata"]
    if metadata is not None:
        names = [part.name for part in fields(Metadata)]
        if not isinstance(metadata, dict) or list(metadata) != names:
            raise RecordError(f"{where} should have the texts {', '.join(names)}")
        metadata = Metadata(**_texts(metadata, where))
    return Record(Put(kept["item"], tensors, where=where).tree, metadata, extra or None)
