"""Safetensors in shards: an index that names the file of each tensor, beside these files."""

import json
from pathlib import Path

from stages.contracts.errors import RecordError
from stages.records.dotted_names import MAX_ENTRIES

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
            text = file.read(MAX_INDEX + 1)
        content = json.loads(text) if len(text) <= MAX_INDEX else None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON: {error!s:.200}") from error
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
