"""From a run store to where the outputs belong: copied beside, then renamed into place."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from stages.contracts.files import sync_directory, written_whole


def publish(made: Mapping[Path, Path]) -> None:
    """Have each file or folder of *made* (from, to) stand where it belongs; one that is not there goes there.

    All are copied before the first is renamed. Killed at any moment, it can be called again.
    """
    parts = {target: target.with_name(f".{target.name}.part") for target in made.values()}
    for source, target in made.items():
        _remove(parts[target])
        if source.exists():
            copy_synced(source, parts[target])
    for target, part in parts.items():
        if part.is_dir() or not part.exists():
            _remove(target)
        if part.exists():
            part.replace(target)
    for folder in {target.parent for target in parts}:
        sync_directory(folder)


def copy_whole(source: Path, target: Path) -> None:
    """A copy of the file *source*; killed at any moment, *target* is all of it or not there."""
    with source.open("rb") as original, written_whole(target) as copy:
        shutil.copyfileobj(original, copy, 1 << 20)


def copy_synced(source: Path, target: Path) -> None:
    """A copy of the file or folder *source*, on disk when this returns."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_copy_file)
    else:
        _copy_file(source, target)


def _copy_file(source: str | Path, target: str | Path) -> None:
    with Path(source).open("rb") as original, Path(target).open("wb") as copy:
        shutil.copyfileobj(original, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
