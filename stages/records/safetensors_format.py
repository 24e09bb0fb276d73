"""Safetensors: a JSON header that names the tensors, followed by their bytes; also in several files.

The tree of a record is stored in the header's metadata as JSON (see `tree_json`) under `KEY`, with Burn's
five metadata texts, so that it is restored exactly. Every other reader finds plain tensors with dotted names,
and a file of another origin becomes the tree that its dotted names describe. The text ``format`` states whose
names and axes the tensors have: ``burn`` for a record of Burn, ``pt`` for PyTorch.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from stages.contracts.errors import RecordError
from stages.records import tensor_data
from stages.records.byte_readers import ByteReader
from stages.records.dotted_names import MAX_ENTRIES, check_name, check_text, unflatten
from stages.records.json_format import unique_dict
from stages.records.record_tree import Metadata, RawTensor, Record
from stages.records.tensor_data import TensorEntry, are_sizes
from stages.records.tree_json import SkeletonDecoder, SkeletonEncoder

KEY = "burn"
METADATA = "__metadata__"
FORMAT, BURN = "format", "burn"
MAX_HEADER = 100_000_000
"""Bytes of the header: the reference implementation's limit."""
MAX_SKELETON = 250_000
"""Values in the skeleton, in which a tensor takes about four."""
MAX_VALUES = 8 * MAX_ENTRIES + MAX_SKELETON
"""Values in the header, in which a tensor takes eight."""
DTYPES = {
    name.upper(): name
    for name in ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "I8", "U8", "Bool")
}
"""Burn's dtype for each dtype of safetensors, in the order of the reference implementation."""

Json = Any


def decode(source: ByteReader, *, keep_data: bool = True) -> Record:
    """Return the record in *source*; bytes after the last tensor are not read.

    Raises `RecordError` if *source* is not a valid safetensors file.
    """
    texts, entries = _read_header(source)
    skeleton = texts.pop(KEY, None)
    position = 0
    for name, entry in tensor_data.sort_entries(entries):
        if entry.start != position:
            raise RecordError(
                f"{source.name}: {name} begins at {entry.start}, expected {position} because gaps are not "
                "allowed"
            )
        position = entry.end
    if position > source.remaining():
        raise RecordError(
            f"{source.name}: its tensors take {position} bytes, but {source.remaining()} remain"
        )
    sorted_tensors = tensor_data.read_section(source, entries, keep_data=keep_data)
    tensors = {name: sorted_tensors[name] for name in entries}
    if skeleton is None:
        return Record(unflatten(tensors, source.name), extra=texts or None)
    return _restore_record(skeleton, tensors, texts, source.name)


def read_entries(path: Path) -> tuple[dict[str, TensorEntry], int]:
    """Return the entries of the tensors in the file *path*, and the position of the first byte of their data.

    Raises `RecordError` if it is not a valid safetensors file.
    """
    with closing(ByteReader.of_file(path)) as source:
        _, entries = _read_header(source)
        return entries, source.offset


def _read_header(source: ByteReader) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """Return the texts and the tensor entries of the header."""
    size = int.from_bytes(source.read(8), "little")
    if size > MAX_HEADER:
        raise RecordError(
            f"{source.name} declares a header of {size} bytes, but at most {MAX_HEADER} are allowed"
        )
    text = source.read(size)
    if not text.startswith(b"{"):
        raise RecordError(
            f"{source.name} is not a safetensors file: its header starts with {text[:8]!r}, not with '{{'"
        )
    where = f"{source.name}, the header"
    header = _parse_json(text, where, MAX_VALUES)
    texts = _check_texts(header.pop(METADATA, {}), where)
    if len(header) > MAX_ENTRIES:
        raise RecordError(f"{where} has {len(header)} tensors, but at most {MAX_ENTRIES} are allowed")
    return texts, {name: _parse_entry(entry, name, where) for name, entry in header.items()}


def _parse_json(text: bytes, where: str, limit: int) -> Json:
    """Return the JSON in *text*. Raises `RecordError` for more values than *limit* or a duplicate key."""
    values = count_values(text.decode(errors="replace"))
    if values > limit:
        raise RecordError(f"{where} has about {values} values, but at most {limit} are allowed")
    try:
        return json.loads(text.decode(), object_pairs_hook=unique_dict, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise RecordError(f"{where} is nested too deeply") from error
    except ValueError as error:
        raise RecordError(f"{where} is not valid JSON: {error!s:.200}") from error


def count_values(text: str) -> int:
    """Return the number of values of the JSON in *text*, or slightly more."""
    return sum(text.count(mark) for mark in ",[{")


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check_texts(node: Json, where: str) -> dict[str, str]:
    if not isinstance(node, dict) or not all(isinstance(value, str) for value in node.values()):
        raise RecordError(f"{where}: its {METADATA} must map names to texts")
    return {check_text(key, where): check_text(value, where) for key, value in node.items()}


def _parse_entry(entry: Json, name: str, where: str) -> TensorEntry:
    check_name(name, where)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise RecordError(f"{where}: {name} must have exactly a dtype, a shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise RecordError(f"{where}: {name} has the dtype {dtype!r:.100}; supported are {', '.join(DTYPES)}")
    if not are_sizes(shape) or not are_sizes(offsets) or len(offsets) != 2:
        raise RecordError(f"{where}: {name} must have a shape and two data_offsets of non-negative integers")
    start, end = offsets
    tensor_data.check_size(end - start, DTYPES[dtype], tuple(shape), where=f"{where}: {name}")
    return TensorEntry(DTYPES[dtype], tuple(shape), start, end)


def _restore_record(text: str, tensors: dict[str, RawTensor], extra: dict[str, str], where: str) -> Record:
    """Return the record with the skeleton *text*."""
    where = f"{where}, the metadata {KEY!r}"
    skeleton = _parse_json(text.encode(), where, MAX_SKELETON)
    if not isinstance(skeleton, dict) or skeleton.keys() != {"metadata", "item"}:
        raise RecordError(f"{where} must have a record's metadata and item")
    metadata = skeleton["metadata"]
    if metadata is not None:
        names = [part.name for part in fields(Metadata)]
        if not isinstance(metadata, dict) or list(metadata) != names:
            raise RecordError(f"{where} must have the texts {', '.join(names)}")
        metadata = Metadata(**_check_texts(metadata, where))
        if extra.get(FORMAT) == BURN:
            del extra[FORMAT]
    return Record(SkeletonDecoder(skeleton["item"], tensors, where=where).tree, metadata, extra or None)


INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX = 100_000_000
"""Bytes of an index."""


def is_index(path: Path) -> bool:
    """Return True if *path* has the suffix of an index of shards."""
    return path.name.endswith(INDEX_SUFFIX)


def read_index(path: Path) -> dict[Path, list[str]]:
    """Return the shards that the index at *path* names, each with the names of its tensors.

    Raises `RecordError` if the index is missing or invalid, or if a shard is outside its folder.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_INDEX)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    content = _parse_json(text, str(path), MAX_VALUES)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise RecordError(f"{path} must have a weight_map from the names of tensors to the names of files")
    if not places or len(places) > MAX_ENTRIES:
        raise RecordError(f"{path} must name from 1 to {MAX_ENTRIES} tensors; found {len(places)}")
    shards: dict[Path, list[str]] = {}
    for tensor, name in places.items():
        shards.setdefault(path.parent / _check_file_name(name, path), []).append(tensor)
    return shards


def _check_file_name(name: str, index: Path) -> str:
    if set(name) & {"/", "\\", "\0"} or not name.endswith(".safetensors"):
        raise RecordError(
            f"{index}: the shard {name[:100]!r} must be the name of a .safetensors file in the same folder"
        )
    return name


ALIGNMENT = 8
BY_SIZE = tuple(DTYPES.values())
"""The order in which the reference implementation writes tensors; then by name."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode(record: Record) -> Iterator[bytes | memoryview]:
    """Yield the bytes of *record* in pieces; `Record.extra` is stored in the file's metadata."""
    encoder = SkeletonEncoder(record.item)
    skeleton = _check_record(record, encoder)
    stated = {FORMAT: BURN} if record.metadata else {}
    header: dict[str, Json] = {METADATA: {KEY: skeleton, **stated, **(record.extra or {})}}
    tensors = sorted(encoder.tensors.items(), key=lambda pair: (BY_SIZE.index(_dtype(pair[1])), pair[0]))
    entries = [(name, NAMES[_dtype(tensor)], tensor.shape, tensor.nbytes) for name, tensor in tensors]
    yield pack_header(header, entries)
    for _, tensor in tensors:
        yield from tensor_data.iter_bytes(tensor)


def pack_header(header: dict[str, Json], tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """Return the start of a file: *header*, to which *tensors* are added in the order of their data.

    Each has a name, a type of safetensors, a shape and a size in bytes.
    """
    position = 0
    for name, dtype, shape, nbytes in tensors:
        offsets = [position, position + nbytes]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        position += nbytes
    text = check_text(_to_json(header), "the record").encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise RecordError(
            f"the record's names take {len(text)} bytes, but safetensors allows at most {MAX_HEADER}"
        )
    return len(text).to_bytes(8, "little") + text


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
