"""The key of a run, a hash of everything that can change a number in it, and the differences of two keys.

`content_hash` is the hash of the content of a file or a directory, independent of how it was created.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.contracts.errors import DataError
from stages.system.files import sha256

KEY_LENGTH = 16
KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
_HASH = re.compile(r"[0-9a-f]{32,}")
_MAX_HASH_LENGTH = 12
"""Most characters of a hash that are printed."""
_MAX_VALUE_LENGTH = 60
"""Most characters of any other value."""


def run_key(entries: Mapping[str, Any]) -> str:
    """Return the key of a run, 16 hexadecimal digits: the hash of *entries*.

    *entries* are values that JSON has. The order of their keys has no effect.
    """
    return hashlib.sha256(_json(dict(entries)).encode()).hexdigest()[:KEY_LENGTH]


def plain(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return *entries* as JSON reads them back: tuples as lists, keys as strings."""
    return dict(json.loads(_json(dict(entries))))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line such as ``params.batch_size: 32 → 64`` for each entry that differs, sorted."""
    before, after = leaves(old), leaves(new)
    changed = [
        name
        for name in before.keys() | after.keys()
        if (name in before) != (name in after) or _json(before.get(name)) != _json(after.get(name))
    ]
    return [f"{name}: {_side(before, name)} → {_side(after, name)}" for name in sorted(changed)]


def leaves(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted name to value, as ``params.metrics[1].kind``; empty maps and lists are values."""
    return dict(_leaves("", plain(entries)))


def format_value(value: Any) -> str:
    """Return *value* as JSON for messages; hashes and long values are shortened."""
    if isinstance(value, str) and _HASH.fullmatch(value):
        return f"{value[:_MAX_HASH_LENGTH]}…"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not name):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, inner)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _leaves(f"{name}[{place}]", inner)
    else:
        yield name, value


def _side(values: Mapping[str, Any], name: str) -> str:
    return format_value(values[name]) if name in values else "absent"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_hash(path: Path) -> str:
    """Return the sha256 of a file's bytes, or of the names and bytes of all files below a directory.

    Times, owners, permissions and the order of creation have no effect. Links are followed, and empty
    directories are ignored, as git and DVC ignore them. Raises `DataError` if a file cannot be read.
    """
    try:
        if not path.is_dir():
            return sha256(_file(path))
        whole = hashlib.sha256(b"directory\n")
        for name, file in sorted(_files(path, b"", frozenset())):
            whole.update(name + b"\0" + sha256(file).encode() + b"\n")
        return whole.hexdigest()
    except OSError as error:
        raise DataError(
            f"{error.filename or path} cannot be read: {error.strerror}. Check the path and its permissions"
        ) from error


def _files(directory: Path, prefix: bytes, parents: frozenset[Path]) -> Iterator[tuple[bytes, Path]]:
    """Yield the name relative to the top, and the path, of every file."""
    real = directory.resolve()
    if real in parents:
        raise DataError(f"{directory} is a link to a directory that contains it. Remove the link")
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + os.fsencode(entry.name)
            if entry.is_dir():
                yield from _files(Path(entry.path), name + b"/", parents | {real})
            else:
                yield name, _file(Path(entry.path))


def _file(path: Path) -> Path:
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is neither a file nor a directory (a pipe, a socket or a device). Remove it")
    return path
