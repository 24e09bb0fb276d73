"""Verification of records and checkpoints: every byte can be read, and equals what the trainer record lists.

No tensor is kept in memory.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isal import igzip, isal_zlib

from stages.contracts.errors import RecordError
from stages.records.config import SUFFIXES
from stages.records.formats import find_format, read, read_metadata
from stages.records.limits import TRAINER_LIMIT, limit_after_verification
from stages.records.record_tree import Record
from stages.records.tools.listing import list_entries, totals
from stages.runs.file_names import parse_name
from stages.system.files import damage

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
    if _is_trainer(path):
        limit = max(limit or 0, TRAINER_LIMIT)
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
        if path.name.endswith(tuple(SUFFIXES.values())) and path.is_file() and _is_record(path):
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


def verify_path(path: Path, *, limit: int | None = None) -> Iterator[Verdict]:
    """Verify the file *path*, or each record and each checkpoint in the directory *path*.

    In a directory, ``.json`` and ``.bin`` files are verified only if they start like a record, because other
    programs use these suffixes too. *limit* is the largest number of bytes of content, if more than by
    default.

    Raises:
        RecordError: If *path* does not exist, or if the directory has no record.
    """
    if path.is_file():
        yield verify_file(path, limit=limit)
        return
    if not path.is_dir():
        raise RecordError(f"{path} does not exist. Correct the path")
    records = list(find_records(path))
    if not records:
        suffixes = ", ".join(SUFFIXES.values())
        raise RecordError(f"found no record in {path}: no file name ends in one of {suffixes}")
    problems: dict[Path, str | None] = {}
    manifests = dict(_manifests(records))
    for one in records:
        verdict = verify_file(one, limit=limit)
        if verdict.problem and one in manifests and _problem(one, manifests[one]) is None:
            verdict = verify_file(one, limit=max(limit or 0, limit_after_verification(one.stat().st_size)))
        problems[one] = verdict.problem
        yield verdict
    for one in records:
        if (name := parse_name(one.name)) and name.is_trainer:
            yield verify_checkpoint(one, name.epoch, problems)


def verify_checkpoint(trainer: Path, epoch: int, problems: Mapping[Path, str | None]) -> Verdict:
    """Verify the files of *epoch* that its record *trainer* lists, and return the verdict.

    *problems* holds what is wrong with the files that were verified before.
    """
    name = f"checkpoint {epoch} in {trainer.parent}"
    if problem := problems.get(trainer):
        return Verdict(name, problem, epoch=epoch)
    files = _read_files(trainer)
    if not files:
        return Verdict(name, f"{trainer} does not list the files of the checkpoint", epoch=epoch)
    for file, written in files.items():
        path = trainer.parent / Path(file).name
        if problem := problems.get(path) or _problem(path, written):
            return Verdict(name, problem, epoch=epoch)
    return Verdict(name, None, f"{len(files) + 1} files", epoch)


def _is_trainer(path: Path) -> bool:
    name = parse_name(path.name)
    return name is not None and name.is_trainer


def _manifests(records: list[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the files that the intact trainer records in *records* list, with their sizes and hashes."""
    for trainer in records:
        if not _is_trainer(trainer):
            continue
        try:
            files = _read_files(trainer)
        except (RecordError, OSError):
            continue  # the verdict on this file reports the problem
        for file, written in files.items():
            yield trainer.parent / Path(file).name, written


def _read_files(trainer: Path) -> dict[str, Any]:
    """Return the files that the record *trainer* lists, with their sizes and hashes; empty without a list."""
    item = read(trainer, keep_data=False, limit=TRAINER_LIMIT).item
    files = item.get("files") if isinstance(item, dict) else None
    return files if isinstance(files, dict) else {}


def _problem(path: Path, written: Any) -> str | None:
    if path.is_file() and not (isinstance(written, dict) and {"size", "sha256"} <= written.keys()):
        return f"the trainer record has no size and sha256 of {path}"
    problem = damage(path, written)
    return f"{path} {problem}" if problem else None
