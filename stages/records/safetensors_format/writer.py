"""Safetensors writer: a JSON header that names the tensors, followed by their bytes.

The tree of a record is stored in the header's metadata as JSON (see `skeleton`) under `KEY`, with Burn's five
metadata texts, so that it is restored exactly. Every other reader finds plain tensors with dotted names.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict

from stages.contracts.errors import RecordError
from stages.records import data_section
from stages.records import dotted_names as flat
from stages.records.record_tree import RawTensor, Record
from stages.records.safetensors_format.reader import (
    BY_SIZE,
    KEY,
    MAX_HEADER,
    MAX_KEPT,
    METADATA,
    NAMES,
    Json,
    count_values,
)
from stages.records.safetensors_format.skeleton import Taken

ALIGNMENT = 8


def encode(record: Record) -> Iterator[bytes | memoryview]:
    """The bytes of *record*, in pieces; what `Record.extra` says stands in the file's metadata."""
    taken = Taken(record.item)
    extra = record.extra or {}
    if KEY in extra or METADATA in taken.tensors:
        raise RecordError(f"the record uses {KEY!r} in its extra texts or {METADATA!r} as a name: rename it")
    kept = _dumped({"metadata": asdict(record.metadata) if record.metadata else None, "item": taken.skeleton})
    if len(taken.tensors) > flat.MAX_ENTRIES or count_values(kept) > MAX_KEPT:
        raise RecordError(
            f"the record has {len(taken.tensors)} tensors and {count_values(kept)} values, at most "
            f"{flat.MAX_ENTRIES} and {MAX_KEPT} can be read back from safetensors"
        )
    header: dict[str, Json] = {METADATA: {KEY: kept, **extra}}
    tensors = sorted(taken.tensors.items(), key=lambda pair: (BY_SIZE.index(_dtype(pair[1])), pair[0]))
    position = 0
    for name, tensor in tensors:
        end = position + tensor.nbytes
        offsets = [position, end]
        header[name] = {"dtype": NAMES[_dtype(tensor)], "shape": list(tensor.shape), "data_offsets": offsets}
        position = end
    text = flat.check_text(_dumped(header), "the record").encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise RecordError(f"the record's names take {len(text)} bytes, safetensors ends at {MAX_HEADER}")
    yield len(text).to_bytes(8, "little") + text
    for name, tensor in tensors:
        yield from data_section.iter_bytes(tensor, name)


def _dtype(tensor: RawTensor) -> str:
    return "F32" if tensor.dtype == "Flex32" else tensor.dtype


def _dumped(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
