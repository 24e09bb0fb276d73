"""The reasons for which a stage is out of date: each file, param and version that differs from dvc.lock.

dvc.lock has one hash for a folder. The list of its files, from which DVC computes that hash, is in
``.runs/folders``, where each run of a stage stores it if the folder has code. Its name is that hash, so a
list is never used for another content.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.project.paths import runs_root
from pipeline.project.snapshot import Snapshot, list_folder
from stages.contracts.errors import StageError
from stages.contracts.text import join_names
from stages.runs.key import differences
from stages.runs.layout import FOLDERS
from stages.system.files import parse_file_list, read_regular, write_text

DIRECTORY_SUFFIX = ".dir"
"""Ending of the hash of a folder in dvc.lock."""
Entry = Mapping[str, Any]
"""The entry of a stage in dvc.lock."""
MAX_FILES = 3
"""Files of a folder that a reason names."""
MAX_REASONS = 6


def list_reasons(before: Entry, after: Entry) -> list[str]:
    """Return what differs in the command, the params and the deps of two entries of dvc.lock for a stage."""
    command = ["the command changed"] if before.get("cmd") != after.get("cmd") else []
    return [*command, *_list_params(before, after), *_list_files(before, after)]


def describe(reasons: list[str]) -> str:
    """Return *reasons* in one line."""
    more = f"; and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
    return "; ".join(reasons[:MAX_REASONS]) + more


def _list_params(before: Entry, after: Entry) -> Iterator[str]:
    """Yield a reason for each param that differs, with both values."""
    sides = [entry.get("params") or {} for entry in (before, after)]
    for file in {**sides[0], **sides[1]}:
        for line in differences(*(side.get(file) or {} for side in sides)):
            yield line if file == "params.yaml" else f"{file}: {line}"


def _list_files(before: Entry, after: Entry) -> Iterator[str]:
    old, new = ({dep["path"]: dep for dep in entry.get("deps") or []} for entry in (before, after))
    for path in sorted({*old, *new}):
        if path not in old:
            yield f"{path} is a new dependency"
        elif path not in new:
            yield f"{path} was a dependency"
        elif old[path] != new[path]:
            yield f"{_name_files(path, str(old[path].get('md5')))} changed"


def _name_files(path: str, oid: str) -> str:
    """Return the names of the files in the folder *path* that differ from those with the hash *oid*.

    Return *path* if it is a file, or if the files that it had are unknown.
    """
    before = _read_list(oid)
    now = list_folder(Path(path)) if before else None
    if before is None or now is None:
        return path
    files = parse_file_list(now.encode(), path)
    names = sorted(name for name in {*before, *files} if before.get(name) != files.get(name))
    return join_names([f"{path}/{name}" for name in names], MAX_FILES) if names else path


def _read_list(oid: str) -> dict[str, str] | None:
    """Return the MD5 of each file in the folder with the hash *oid*; None if they are unknown."""
    with suppress(OSError, StageError):
        path = runs_root() / FOLDERS / oid
        return parse_file_list(read_regular(path), path)
    return None


def store_folder_lists(snapshot: Snapshot) -> None:
    """Store the list of each folder with code in *snapshot*, that of a stage which has run, if it is new."""
    code = [path for path in snapshot.files if path.suffix == ".py"]
    for folder in map(Path, snapshot.deps):
        if not any(path != folder and path.is_relative_to(folder) for path in code):
            continue
        if text := list_folder(folder):
            digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            path = runs_root() / FOLDERS / f"{digest}{DIRECTORY_SUFFIX}"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
