"""Publication of results: copy files from a run store next to the outputs, verify them, and rename them.

Published files share their blocks with the store if the file system can clone them (btrfs, XFS, bcachefs): an
edit of one does not change the other. Otherwise they are copied. They are never hard links to the
store: users may edit an output in place, which would change the store too, and DVC replaces a hard link with
a copy unless ``cache.type`` is ``hardlink``. `pipeline.engine.stage_run` lets the store and the cache of
DVC share one inode instead, because users edit neither of them.
"""

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

from stages.runs.manifest import Manifest
from stages.runs.store import RunStore
from stages.system.files import (
    CHUNK_BYTES,
    describe,
    difference,
    new_part,
    remove,
    remove_stale_parts,
    sync_directory,
    sync_trees,
)

CLONE = 0x40049409
"""The request FICLONE of Linux."""


def publish(targets: Mapping[Path, Path], expected: Manifest | None = None) -> dict[str, str]:
    """Replace each target of *targets* (source to target) by a copy; remove a target without a source.

    All files are copied before the first is renamed. The files in *expected*, by path of the source, are
    verified while they are copied; of the others, unchanged copies of an earlier call are kept. Returns what
    is wrong with each file that is missing or damaged; if there is one, no target is changed. If the process
    is killed, call it again.
    """
    parts: dict[Path, Path] = {}
    with ExitStack() as stack:
        for target in targets.values():
            remove_stale_parts(target)
            parts[target] = new_part(target)
            stack.callback(remove, parts[target])  # after an error, previous outputs may need its space
        copied = _copy_all(targets, parts, expected or {})
        wrong = {name: difference(copied.get(name), written) for name, written in (expected or {}).items()}
        if damaged := {name: problem for name, problem in wrong.items() if problem}:
            return damaged
        for target, part in parts.items():
            if part.is_dir() or not part.exists():
                remove(target)
            if part.exists():
                part.replace(target)
    for folder in {target.parent for target in parts}:
        sync_directory(folder)
    return {}


def publish_results(store: RunStore, outputs: Sequence[Path], untracked: Sequence[Path]) -> dict[str, str]:
    """Replace *outputs* by the files and directories of the same names in *store*, and *untracked* likewise.

    *outputs* are verified with the store's manifest while they are copied. Returns what is wrong with each
    damaged file, by its path below the store; if there is one, nothing is published.
    """
    store.check_exists()
    names = {path.name for path in outputs}
    expected = {
        str(store.path / name): written
        for name, written in store.manifest.items()
        if name.partition("/")[0] in names
    }
    problems = publish({store.path / path.name: path for path in [*outputs, *untracked]}, expected)
    return {Path(name).relative_to(store.path).as_posix(): problem for name, problem in problems.items()}


def _copy_all(
    targets: Mapping[Path, Path], parts: Mapping[Path, Path], expected: Manifest
) -> dict[str, dict[str, Any]]:
    """Copy each source of *targets* that exists to the part of its target.

    Returns the size and sha256 of each file in *expected*.
    """
    copied: dict[str, dict[str, Any]] = {}
    present = {source: target for source, target in targets.items() if source.exists()}
    for source, target in present.items():
        part = parts[target]

        def copy_file(file: str | Path, copy: str | Path, target: Path = target, part: Path = part) -> None:
            # a link to the target itself would stay beside it, because a rename to the same file does nothing
            earlier = None if copy == part else target / Path(copy).relative_to(part)
            if str(file) in expected:
                copied[str(file)] = _copy_file(Path(file), Path(copy))
            elif earlier is None or not _keep_copy(Path(file), earlier, Path(copy)):
                _copy_file(Path(file), Path(copy))
                shutil.copystat(file, copy)

        part.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, part, copy_function=copy_file)
        else:
            copy_file(source, part)
    sync_trees(parts[target] for target in present.values())
    return copied


def _keep_copy(source: Path, earlier: Path, copy: Path) -> bool:
    """Make *copy* a link to *earlier*, which it will replace, if that is a copy of *source*.

    Returns whether it is one. A copy has the size and the time of its source until one of them is changed.
    """
    with suppress(OSError):
        before, now = earlier.lstat(), source.stat()
        if _signature(before) == _signature(now):
            os.link(earlier, copy)
            return True
    return False


def _signature(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mode, status.st_size, status.st_mtime_ns


def _copy_file(source: Path, target: Path) -> dict[str, Any]:
    """Copy the file *source* to the new file *target*, and return the size and the sha256 of the copy."""
    with source.open("rb") as original, target.open("xb") as copy:
        if _clone(original, copy):
            return describe(target)
        digest, size = hashlib.sha256(), 0
        while chunk := original.read(CHUNK_BYTES):
            digest.update(chunk)
            size += copy.write(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def _clone(original: BinaryIO, copy: BinaryIO) -> bool:
    """Let *copy* share the blocks of *original*; return whether the file system could."""
    with suppress(OSError):
        if sys.platform == "linux":
            fcntl.ioctl(copy.fileno(), CLONE, original.fileno())
            return True
    return False
