"""A hash of the content of a file or a directory, independent of how it was created."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from stages.contracts.errors import DataError
from stages.system.files import sha256


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


def _files(directory: Path, prefix: bytes, above: frozenset[Path]) -> Iterator[tuple[bytes, Path]]:
    """Yield the name relative to the top, and the path, of every file."""
    real = directory.resolve()
    if real in above:
        raise DataError(f"{directory} is a link to a directory that contains it. Remove the link")
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + os.fsencode(entry.name)
            if entry.is_dir():
                yield from _files(Path(entry.path), name + b"/", above | {real})
            else:
                yield name, _file(Path(entry.path))


def _file(path: Path) -> Path:
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is neither a file nor a directory (a pipe, a socket or a device). Remove it")
    return path
