"""Labels of files: in folders, one for each class and perhaps split, or in the rows of CSV files."""

import csv
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from stages.contracts.errors import DataError, closest
from stages.system.files import open_text

SPLIT_FOLDERS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
"""Names of folders that are splits, if there are no others beside them."""


MAX_FIELD = 2**31 - 1
"""The longest field in characters, which fits into a C long of every platform."""
TO_UTF8 = "Convert the file to UTF-8, for example with `iconv -f latin1 -t utf-8`"


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
    for a class without files, and for one with a folder twice; *kind* is their name in the message.
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


def list_unlabeled(folder: Path, suffixes: Collection[str]) -> Iterator[ListedFile]:
    """Yield the files below *folder*, sorted, whose names end in one of *suffixes* as for `list_files`.

    If all folders in it are named as splits, those are the splits of their files.
    """
    splits = {name: SPLIT_FOLDERS.get(name) for name in _list_folders(folder)}
    is_split = "train" in splits and all(splits.values())
    paths = {path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in suffixes}
    for path in sorted(paths):
        if not any(part.startswith(".") for part in path.parts):
            yield ListedFile(path.as_posix(), "", splits.get(path.parts[0]) if is_split else None)


def _list_classes(folder: Path, suffixes: Collection[str], kind: str) -> Iterator[ListedFile]:
    """Yield the files in each folder of a class in *folder*, sorted."""
    for name in _list_folders(folder):
        paths = sorted(_list_below(folder, name, suffixes, set()))
        if not paths:
            raise DataError(
                f"{folder / name} has no {kind}. Add {kind} of this class, whose names end in "
                f"{', '.join(sorted(suffixes))}, or remove the folder"
            )
        yield from (ListedFile(path, name) for path in paths)


def _list_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _list_below(
    folder: Path, name: str, suffixes: Collection[str], listed: set[tuple[int, int]]
) -> Iterator[str]:
    """Yield the files below the folder *name* in *folder*; *listed* identifies the folders of this class.

    Raises `DataError` for a folder that links lead to twice: a few links can stand for billions of folders.
    """
    about = (folder / name).stat()
    if (about.st_dev, about.st_ino) in listed:
        raise DataError(f"{folder / name} is a link to a folder that this class has already. Remove the link")
    listed.add((about.st_dev, about.st_ino))
    with os.scandir(folder / name) as entries:
        for entry in entries:
            below = f"{name}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _list_below(folder, below, suffixes, listed)
            elif os.path.splitext(entry.name)[1].lower() in suffixes:  # noqa: PTH122  much faster
                yield below


def read_rows(path: Path, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the fields of each row of *path* by the column, with the number of the row's last line.

    The first line has the names of the columns; empty lines are not rows. Raises `DataError` if two columns
    have one name, or a row has more or fewer fields, and `OSError`, `UnicodeDecodeError` and `csv.Error` if
    the file cannot be read.
    """
    with open_text(path, newline="") as file, _long_fields():
        rows = csv.reader(file, delimiter=delimiter)
        names = next(rows, [])
        check_unique_names(names, path)
        for fields in filter(None, rows):
            count = len(fields)
            if count != len(names):
                raise DataError(
                    f"{path}, line {rows.line_num}: the row has {count} field{'s' * (count != 1)}, but the "
                    f"first line has {len(names)}. Enclose values with the delimiter {delimiter!r} in double "
                    "quotes"
                )
            yield rows.line_num, dict(zip(names, fields, strict=True))


@contextmanager
def _long_fields() -> Iterator[None]:
    """Accept fields of any length in the block, such as texts; the module has a limit of 131,072."""
    before = csv.field_size_limit(MAX_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def check_unique_names(names: list[str], path: Path) -> None:
    """Raise `DataError` if two columns of the table *path* have one of *names*."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path} has several columns with the name {twice[0]!r}. Rename them")


def check_column(names: Sequence[str], argument: str, column: str, path: str) -> None:
    """Raise `DataError` if *column*, an *argument* of the source, is not one of *names*."""
    if column not in names:
        raise DataError(
            f"load_data.source.{argument}: {path} has no column {column!r}.{closest(column, names)} "
            f"Columns: {', '.join(names)}"
        )


def describe_read_error(error: Exception) -> str:
    """Return why a file could not be read, and what to do, for the exceptions of `read_rows`."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.object[error.start]:#x} at position {error.start} is not UTF-8. {TO_UTF8}"
    return f"{error}. Correct it"
