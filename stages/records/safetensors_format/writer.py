"""Safetensors writer: a JSON header that names the tensors, followed by their bytes.

The tree of a record is stored in the header's metadata as JSON (see `skeleton`) under `KEY`, with Burn's five
metadata texts, so that it is restored exactly. Every other reader finds plain tensors with dotted names.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict

from stages.contracts.errors import RecordError
from stages.records import data_section
from stages.records.dotted_names import MAX_ENTRIES, check_text
from stages.records.record_tree import RawTensor, Record
from stages.records.safetensors_format.reader import (
    DTYPES,
    KEY,
    MAX_HEADER,
    MAX_SKELETON,
    METADATA,
    Json,
    count_values,
)
from stages.records.safetensors_format.skeleton import SkeletonEncoder

ALIGNMENT = 8
BY_SIZE = tuple(DTYPES.values())
"""The order in which the reference implementation writes tensors; then by name."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode(record: Record) -> Iterator[bytes | memoryview]:
    """Yield the bytes of *record* in pieces; `Record.extra` is stored in the file's metadata."""
    encoder = SkeletonEncoder(record.item)
    skeleton = _check_record(record, encoder)
    header: dict[str, Json] = {METADATA: {KEY: skeleton, **(record.extra or {})}}
    tensors = sorted(encoder.tensors.items(), key=lambda pair: (BY_SIZE.index(_dtype(pair[1])), pair[0]))
    position = 0
    for name, tensor in tensors:
        end = position + tensor.nbytes
        offsets = [position, end]
        header[name] = {"dtype": NAMES[_dtype(tensor)], "shape": list(tensor.shape), "data_offsets": offsets}
        position = end
    text = check_text(_to_json(header), "the record").encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise RecordError(
            f"the record's names take {len(text)} bytes, but safetensors allows at most {MAX_HEADER}"
        )
    yield len(text).to_bytes(8, "little") + text
    for name, tensor in tensors:
        yield from data_section.iter_bytes(tensor, name)


def _check_record(record: Record, encoder: SkeletonEncoder) -> str:
    """Return the skeleton as JSON. Raises `RecordError` if the record could not be read back."""
    if KEY in (record.extra or {}) or METADATA in encoder.tensors:
        raise RecordError(
            f"the record uses the reserved {KEY!r} in its extra texts or {METADATA!r} as a name; rename it"
        )
    metadata = asdict(record.metadata) if record.metadata else None
    skeleton = _to_json({"metadata": metadata, "item": encoder.skeleton})
    if len(encoder.tensors) > MAX_ENTRIES or count_values(skeleton) > MAX_SKELETON:
        raise RecordError(
            f"the record has {len(encoder.tensors)} tensors and {count_values(skeleton)} values, but at most "
            f"{MAX_ENTRIES} and {MAX_SKELETON} can be read back from safetensors"
        )
    return skeleton


def _dtype(tensor: RawTensor) -> str:
    return "F32" if tensor.dtype == "Flex32" else tensor.dtype


def _to_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
