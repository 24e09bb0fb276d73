"""Files that appear whole or not at all."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
"""Bytes that are copied at a time."""


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write *path*'s new content to; *path* changes when the block ends, and only if it ends well.

    The content goes to a hidden name in the same directory, is synced, and takes *path*'s place
    with one rename; then the directory is synced too.
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
    with source.open("rb") as original, written_whole(target) as copy:
        shutil.copyfileobj(original, copy, CHUNK_BYTES)


def write_text(path: Path, text: str) -> None:
    """*text* as the whole content of *path*, in UTF-8."""
    with written_whole(path) as file:
        file.write(text.encode())


def sync_directory(path: Path) -> None:
    """Renames and removals in directory *path* are on disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """The digest of *path*'s content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5(path: Path) -> str | None:
    """The digest that DVC knows *path*'s content by; None where there is no such file."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.exists() else None


def describe(path: Path) -> dict[str, Any]:
    """Return the size and the sha256 of the file *path*, as a manifest holds them."""
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def damage(path: Path, written: Mapping[str, Any]) -> str | None:
    """Return how the file *path* differs from the size and sha256 in *written*; None if it is intact."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != written["size"]:
        return f"has {size} bytes, {written['size']} were written"
    return None if sha256(path) == written["sha256"] else "is not as it was written (its sha256 differs)"
