"""Log files cut back to where they were when a checkpoint was written."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from stages.contracts.errors import CheckpointError, StageError

_CHUNK_BYTES = 1 << 20


def cut_back(directory: Path, position: Mapping[str, Any]) -> dict[str, int]:
    """Cut each file that *position* names to the size it had; return name to size, as *position* has it.

    Names are of files below *directory*. Raises what `check_back` raises; then no file was changed.
    """
    sizes = check_back(directory, position)
    for name, size in sizes.items():
        _cut(directory / name, size)
    return sizes


def check_back(directory: Path, position: Mapping[str, Any]) -> dict[str, int]:
    """Return name to size of the files of *position*, each of which begins with the content it had.

    Raises `CheckpointError` if one is missing, shorter or changed, and if *position* is invalid.
    """
    sizes: dict[str, int] = part_of(position, "files", dict)
    hashes = position.get("sha256") or {}
    for name, size in sizes.items():
        _check(directory, name, size)
        if name in hashes and hashes[name] != _digest(directory / name, size):
            raise CheckpointError(
                f"the first {size} bytes of {directory / name} are not as they were when the checkpoint was "
                "written: resume from an earlier checkpoint"
            )
    return dict(sizes)


def hashes_of(directory: Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the sha256 of the first bytes of each file below *directory*, as many as *sizes* has.

    Raises `StageError` if one was removed.
    """
    try:
        return {name: _digest(directory / name, size) for name, size in sizes.items()}
    except FileNotFoundError as error:
        raise removed(error.filename) from error


def removed(path: Path | str) -> StageError:
    """Return the error for a log that was removed while it was open."""
    return StageError(
        f"{path} was removed or replaced while the run wrote it. Nothing was recorded. Run the same command "
        "again to resume from the last checkpoint before it"
    )


def part_of(position: Mapping[str, Any], name: str, kind: type) -> Any:
    """What *position* says under *name*. Raises `CheckpointError` where that is no *kind*."""
    part = position.get(name)
    if type(part) is not kind:
        raise CheckpointError(
            f"a logger's position is {dict(position)!r}, with no {name} in it: the checkpoint was written "
            "with another logger; give the one that the run had"
        )
    return part


def _check(directory: Path, name: str, size: Any) -> None:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name or pure == PurePosixPath():
        raise CheckpointError(f"the checkpoint names a log file {name!r}, which is not below {directory}")
    if type(size) is not int or size < 0:
        raise CheckpointError(f"the checkpoint says that {directory / name} had a size of {size!r}")
    path = directory / name
    there = path.stat().st_size if path.is_file() else None
    if there is None or there < size:
        found = "is missing" if there is None else f"has {there} bytes"
        raise CheckpointError(
            f"{path} {found}, and had {size} bytes when the checkpoint was written: put it back, or resume "
            "from an earlier checkpoint"
        )


def _digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()


def _cut(path: Path, size: int) -> None:
    try:
        with path.open("r+b") as file:
            if path.stat().st_size != size:
                file.truncate(size)
                os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be cut back to {size} bytes: {error.strerror}") from error
