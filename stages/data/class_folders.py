"""Files in a folder for each class, which may be in a folder for each split."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stages.contracts.errors import DataError

SPLIT_FOLDERS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
"""Names of folders that are splits, if there are no others beside them."""


@dataclass(frozen=True)
class ListedFile:
    """A file that is listed: its path relative to the folder, and its labels."""

    path: str
    label: str
    split: str | None = None
    group: str | None = None


def list_files(folder: Path, suffixes: Collection[str], kind: str) -> Iterator[ListedFile]:
    """Yield the files below *folder* whose names end in one of *suffixes*, in lower case or in capitals.

    Each folder in *folder* is a class, whose files may be in folders of any depth. If all are named as
    splits, they have the folders of the classes. Names that start with a dot are ignored. Raises `DataError`
    for a class without files; *kind* is their name in the message.
    """
    names = _list_folders(folder)
    splits = {name: SPLIT_FOLDERS.get(name) for name in names}
    is_split = "train" in names and len(names) > 1 and all(splits.values())
    if not is_split or not all(_list_folders(folder / name) for name in names):
        yield from _list_classes(folder, suffixes, kind)
        return
    for name, split in splits.items():
        for file in _list_classes(folder / name, suffixes, kind):
            yield replace(file, path=f"{name}/{file.path}", split=split)


def _list_classes(folder: Path, suffixes: Collection[str], kind: str) -> Iterator[ListedFile]:
    """Yield the files in each folder of a class in *folder*, sorted."""
    for name in _list_folders(folder):
        paths = sorted(_list_below(folder, name, suffixes))
        if not paths:
            raise DataError(
                f"{folder / name} has no {kind}. Add {kind} of this class, whose names end in "
                f"{', '.join(sorted(suffixes))}, or remove the folder"
            )
        yield from (ListedFile(path, name) for path in paths)


def _list_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _list_below(folder: Path, name: str, suffixes: Collection[str]) -> Iterator[str]:
    with os.scandir(folder / name) as entries:
        for entry in entries:
            below = f"{name}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _list_below(folder, below, suffixes)
            elif os.path.splitext(entry.name)[1].lower() in suffixes:  # noqa: PTH122  much faster
                yield below
