"""Verification of records: reads every byte, without keeping tensors in memory."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isal import igzip, isal_zlib

from stages.contracts.errors import RecordError
from stages.records.formats import FORMATS, find_format, read, read_metadata
from stages.records.record_tree import Record
from stages.records.tools.listing import list_entries, totals

_SHARED = {
    ".json": re.compile(rb'\s*\{\s*"(metadata|item)"\s*:'),
    ".bin": re.compile(rb"(\x03f32|\x03f64|\x15half::binary16::f16)\x03i"),
}
"""The first bytes of a record, for the suffixes that other programs use too."""
_BEGINNING = 256


@dataclass(frozen=True)
class Verdict:
    """The result of the verification of a file or a checkpoint."""

    name: str
    problem: str | None
    """What is wrong; None if it is intact."""
    note: str = ""
    """A short description of the content."""
    epoch: int | None = None
    """The epoch of a checkpoint; None for a file."""


def verify_file(path: Path, *, limit: int | None = None) -> Verdict:
    """Read the record at *path* without keeping its tensors and return whether it is intact.

    *limit* is the largest number of bytes of content, if more than by default.
    """
    try:
        form = find_format(path)
        if not form.has_names:
            metadata = read_metadata(path, form, limit=limit)
            return Verdict(
                str(path),
                None,
                f"Burn {metadata.version}; only the metadata was verified, because the format has no names",
            )
        return Verdict(str(path), None, _note(read(path, form, keep_data=False, limit=limit)))
    except (RecordError, OSError) as error:
        return Verdict(str(path), str(error))


def find_records(directory: Path) -> Iterator[Path]:
    """Yield every record in *directory* and its subdirectories, sorted by path."""
    for path in sorted(directory.rglob("*")):
        has_suffix = any(path.name.endswith(form.suffix) for form in FORMATS.values())
        if has_suffix and path.is_file() and _is_record(path):
            yield path


def _note(record: Record) -> str:
    sums = totals(list_entries(record.item))
    version = f"Burn {record.metadata.version}, " if record.metadata else ""
    return f"{version}{sums.tensors} tensors, {sums.nbytes:,} bytes"


def _is_record(path: Path) -> bool:
    """Return whether *path* is meant to be a record, by its suffix or its first bytes."""
    form = find_format(path)
    begins = _SHARED.get(form.suffix.removesuffix(".gz"))
    if begins is None:
        return True
    try:
        with igzip.open(path, "rb") if form.gzipped else path.open("rb") as file:
            return bool(begins.match(file.read(_BEGINNING)))
    except (OSError, EOFError, isal_zlib.error):  # type: ignore[misc]  # isal's stub lacks it
        return True  # unreadable, so it must be verified
