"""Atomic writes of files, and checks of their content."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
"""The number of bytes copied at a time."""
UNREADABLE = {"size": -1, "sha256": ""}
"""An entry of a manifest that no file matches, for a file whose content is not known."""


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a file for the new content of *path*, which replaces the old content if the block succeeds.

    The content is written to a hidden file in the same directory, synced, and renamed to *path*; then the
    directory is synced. If the block raises an exception, *path* is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def copy_file(source: Path, target: Path) -> None:
    """Copy the file *source*; if the process is killed at any moment, *target* is complete or missing."""
    with source.open("rb") as original, open_atomic(target) as copy:
        shutil.copyfileobj(original, copy, CHUNK_BYTES)


def write_text(path: Path, text: str) -> None:
    """Write *text* to *path* atomically, in UTF-8."""
    with open_atomic(path) as file:
        file.write(text.encode())


def sync_directory(path: Path) -> None:
    """Sync the renames and removals in directory *path* to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Return the SHA-256 of the content of *path* in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5(path: Path) -> str | None:
    """Return the MD5 of *path* in hexadecimal, as DVC computes it; None if there is no such file."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.exists() else None


def describe(path: Path) -> dict[str, Any]:
    """Return the size and the sha256 of the file *path*, as a manifest holds them."""
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def damage(path: Path, written: Mapping[str, Any]) -> str | None:
    """Return how the file *path* differs from the size and sha256 in *written*; None if it is intact."""
    return difference(describe(path) if path.is_file() else None, written)


def difference(found: Mapping[str, Any] | None, written: Mapping[str, Any]) -> str | None:
    """Return how a file of the size and sha256 in *found* differs from *written*; None if it does not.

    *found* is None for a missing file.
    """
    if found is None:
        return "is missing"
    if written == UNREADABLE:
        return "could not be read when its size and sha256 were recorded"
    if found["size"] != written["size"]:
        return f"has {found['size']} bytes, but {written['size']} were written"
    if found["sha256"] != written["sha256"]:
        return "has changed since it was written (its sha256 differs)"
    return None
