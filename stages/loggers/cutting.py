"""Log files cut back to where they were when a checkpoint was written."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from stages.contracts.errors import CheckpointError


def cut_back(directory: Path, position: Mapping[str, Any]) -> dict[str, int]:
    """Cut each file that *position* names to the size it had; name to size, as *position* says it.

    Names are of files below *directory*. Raises `CheckpointError` where one is missing or shorter than it
    was, and for a position that is none; then no file has been changed.
    """
    sizes: dict[str, int] = part_of(position, "files", dict)
    for name, size in sizes.items():
        _check(directory, name, size)
    for name, size in sizes.items():
        _cut(directory / name, size)
    return dict(sizes)


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


def _cut(path: Path, size: int) -> None:
    try:
        with path.open("r+b") as file:
            if path.stat().st_size != size:
                file.truncate(size)
                os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be cut back to {size} bytes: {error.strerror}") from error
