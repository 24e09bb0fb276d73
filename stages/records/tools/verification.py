"""Whether files of state, and checkpoints, are whole: every byte is read, and no tensor is kept."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isal import igzip, isal_zlib

from stages.contracts.errors import RecordError
from stages.contracts.files import damage
from stages.records.formats import FORMATS, find_format, read, read_metadata
from stages.records.limits import TRAINER_LIMIT, verified_limit
from stages.records.record_tree import Record
from stages.records.tools.listing import list_entries, totals

_TRAINER = re.compile(r"trainer-(\d+)\.mpk\.gz")
_SHARED = {
    ".json": re.compile(rb'\s*\{\s*"(metadata|item)"\s*:'),
    ".bin": re.compile(rb"(\x03f32|\x03f64|\x15half::binary16::f16)\x03i"),
}
"""How a record begins whose suffix other programs use too."""
_BEGINNING = 256


@dataclass(frozen=True)
class Verdict:
    """What was found of one file, or of one checkpoint."""

    name: str
    problem: str | None
    """None where nothing is wrong."""
    note: str = ""
    """What there is, in a few words."""
    epoch: int | None = None
    """Of the checkpoint that the verdict is about; None where it is about a file."""


def verify_path(path: Path, *, limit: int | None = None) -> Iterator[Verdict]:
    """Yield one for the file *path*; for a directory one for each record and each checkpoint below it.

    In a directory, ``.json`` and ``.bin`` files count only if they begin as a record does: other programs
    use these names too. *limit* raises the default `Limits` to as many bytes of content. Raises `RecordError`
    if *path* is neither, or if there is no record below it.
    """
    if path.is_file():
        yield verify_file(path, limit=limit)
        return
    if not path.is_dir():
        raise RecordError(f"there is no file and no directory {path}")
    found = list(find_records(path))
    if not found:
        suffixes = ", ".join(form.suffix for form in FORMATS.values())
        raise RecordError(f"there is no record below {path}: none of its files ends in {suffixes}")
    problems: dict[Path, str | None] = {}
    manifests = dict(_manifests(found))
    for one in found:
        verdict = verify_file(one, limit=limit)
        if verdict.problem and one in manifests and _problem(one, manifests[one]) is None:
            verdict = verify_file(one, limit=max(limit or 0, verified_limit(one.stat().st_size)))
        problems[one] = verdict.problem
        yield verdict
    for one in found:
        if match := _TRAINER.fullmatch(one.name):
            yield verify_checkpoint(one, int(match[1]), problems)


def verify_file(path: Path, *, limit: int | None = None) -> Verdict:
    """Read the record at *path* without its tensors and report whether it is intact."""
    if _TRAINER.fullmatch(path.name):
        limit = max(limit or 0, TRAINER_LIMIT)
    try:
        form = find_format(path)
        if not form.has_names:
            metadata = read_metadata(path, form, limit=limit)
            return Verdict(
                str(path), None, f"Burn {metadata.version}; only its metadata can be read with no names"
            )
        return Verdict(str(path), None, _note(read(path, form, keep_data=False, limit=limit)))
    except (RecordError, OSError) as error:
        return Verdict(str(path), str(error))


def verify_checkpoint(trainer: Path, epoch: int, problems: Mapping[Path, str | None]) -> Verdict:
    """Whether all files that *trainer* names are as it says, and whole by *problems*."""
    name = f"checkpoint {epoch} in {trainer.parent}"
    if problem := problems.get(trainer):
        return Verdict(name, problem, epoch=epoch)
    item = read(trainer, keep_data=False, limit=TRAINER_LIMIT).item
    files = item.get("files") if isinstance(item, dict) else None
    if not isinstance(files, dict) or not files:
        return Verdict(name, f"{trainer} does not say which files belong to it", epoch=epoch)
    for file, written in files.items():
        path = trainer.parent / Path(file).name
        if problem := problems.get(path) or _problem(path, written):
            return Verdict(name, problem, epoch=epoch)
    return Verdict(name, None, f"{len(files) + 1} files", epoch)


def _manifests(found: list[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the files that intact trainer records among *found* name, with their sizes and hashes."""
    for trainer in found:
        if not _TRAINER.fullmatch(trainer.name):
            continue
        try:
            item = read(trainer, keep_data=False, limit=TRAINER_LIMIT).item
        except (RecordError, OSError):
            continue  # its own verdict names the problem
        files = item.get("files") if isinstance(item, dict) else None
        for file, written in files.items() if isinstance(files, dict) else ():
            yield trainer.parent / Path(file).name, written


def find_records(directory: Path) -> Iterator[Path]:
    """Every record below *directory*, sorted by name within its folder."""
    for path in sorted(directory.rglob("*")):
        known = any(path.name.endswith(form.suffix) for form in FORMATS.values())
        if known and path.is_file() and _is_claimed(path):
            yield path


def _note(record: Record) -> str:
    sums = totals(list_entries(record.item))
    version = f"Burn {record.metadata.version}, " if record.metadata else ""
    return f"{version}{sums.tensors} tensors, {sums.nbytes:,} bytes"


def _problem(path: Path, written: Any) -> str | None:
    if path.is_file() and not (isinstance(written, dict) and {"size", "sha256"} <= written.keys()):
        return f"the trainer record has no size and sha256 of {path}"
    found = damage(path, written)
    return f"{path} {found}" if found else None


def _is_claimed(path: Path) -> bool:
    """Whether *path* is to be a record: its suffix is ours alone, or it begins as one."""
    form = find_format(path)
    begins = _SHARED.get(form.suffix.removesuffix(".gz"))
    if begins is None:
        return True
    try:
        with igzip.open(path, "rb") if form.gzipped else path.open("rb") as file:
            return bool(begins.match(file.read(_BEGINNING)))
    except (OSError, EOFError, isal_zlib.error):  # type: ignore[misc]  # isal's stub lacks it
        return True  # cannot be told, so it is to be looked at
