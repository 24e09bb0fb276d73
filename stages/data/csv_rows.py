"""Rows of CSV files of texts and labels."""

import csv
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.contracts.errors import DataError

MAX_FIELD = 2**31 - 1
"""The longest field in characters, which fits into a C long of every platform."""
TO_UTF8 = "Convert the file to UTF-8, for example with `iconv -f latin1 -t utf-8`"


def read_rows(path: Path, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the fields of each row of *path* by the column, with the number of the row's last line.

    The first line has the names of the columns; empty lines are not rows. Raises `DataError` if two columns
    have one name, or a row has more or fewer fields, and `OSError`, `UnicodeDecodeError` and `csv.Error` if
    the file cannot be read.
    """
    with path.open(encoding="utf-8-sig", newline="") as file, _long_fields():
        rows = csv.DictReader(file, delimiter=delimiter)
        names = list(rows.fieldnames or ())
        check_unique_names(names, path)
        for row in rows:
            count = len(names) + len(row.get(None, ())) - list(row.values()).count(None)
            if count != len(names):
                raise DataError(
                    f"{path}, line {rows.line_num}: the row has {count} field{'s' * (count != 1)}, but the "
                    f"first line has {len(names)}. Enclose values with the delimiter {delimiter!r} in double "
                    "quotes"
                )
            yield rows.line_num, row


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


def describe_read_error(error: Exception) -> str:
    """Return why a file could not be read, and what to do, for the exceptions of `read_rows`."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.object[error.start]:#x} at position {error.start} is not UTF-8. {TO_UTF8}"
    return f"{error}. Correct it"
