"""Verification of checkpoints: every file is intact, and equals the one that the trainer record lists."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.checkpoints.file_names import parse_name
from stages.contracts.errors import RecordError
from stages.records.formats import FORMATS, read
from stages.records.limits import TRAINER_LIMIT, limit_after_verification
from stages.records.tools.verification import Verdict, find_records, verify_file
from stages.system.files import damage


def verify_path(path: Path, *, limit: int | None = None) -> Iterator[Verdict]:
    """Verify the file *path*, or each record and each checkpoint in the directory *path*.

    In a directory, ``.json`` and ``.bin`` files are verified only if they start like a record, because other
    programs use these suffixes too. *limit* is the largest number of bytes of content, if more than by
    default.

    Raises:
        RecordError: If *path* does not exist, or if the directory has no record.
    """
    if path.is_file():
        yield _verify_file(path, limit)
        return
    if not path.is_dir():
        raise RecordError(f"{path} does not exist. Correct the path")
    found = list(find_records(path))
    if not found:
        suffixes = ", ".join(form.suffix for form in FORMATS.values())
        raise RecordError(f"found no record in {path}: no file name ends in one of {suffixes}")
    problems: dict[Path, str | None] = {}
    manifests = dict(_manifests(found))
    for one in found:
        verdict = _verify_file(one, limit)
        if verdict.problem and one in manifests and _problem(one, manifests[one]) is None:
            verdict = verify_file(one, limit=max(limit or 0, limit_after_verification(one.stat().st_size)))
        problems[one] = verdict.problem
        yield verdict
    for one in found:
        if (name := parse_name(one.name)) and name.is_trainer:
            yield verify_checkpoint(one, name.epoch, problems)


def verify_checkpoint(trainer: Path, epoch: int, problems: Mapping[Path, str | None]) -> Verdict:
    """Verify the files of *epoch* that its record *trainer* lists, and return the verdict.

    *problems* holds what is wrong with the files that were verified before.
    """
    name = f"checkpoint {epoch} in {trainer.parent}"
    if problem := problems.get(trainer):
        return Verdict(name, problem, epoch=epoch)
    item = read(trainer, keep_data=False, limit=TRAINER_LIMIT).item
    files = item.get("files") if isinstance(item, dict) else None
    if not isinstance(files, dict) or not files:
        return Verdict(name, f"{trainer} does not list the files of the checkpoint", epoch=epoch)
    for file, written in files.items():
        path = trainer.parent / Path(file).name
        if problem := problems.get(path) or _problem(path, written):
            return Verdict(name, problem, epoch=epoch)
    return Verdict(name, None, f"{len(files) + 1} files", epoch)


def _verify_file(path: Path, limit: int | None) -> Verdict:
    return verify_file(path, limit=max(limit or 0, TRAINER_LIMIT) if _is_trainer(path) else limit)


def _is_trainer(path: Path) -> bool:
    name = parse_name(path.name)
    return name is not None and name.is_trainer


def _manifests(found: list[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the files that the intact trainer records in *found* list, with their sizes and hashes."""
    for trainer in found:
        if not _is_trainer(trainer):
            continue
        try:
            item = read(trainer, keep_data=False, limit=TRAINER_LIMIT).item
        except (RecordError, OSError):
            continue  # the verdict on this file reports the problem
        files = item.get("files") if isinstance(item, dict) else None
        for file, written in files.items() if isinstance(files, dict) else ():
            yield trainer.parent / Path(file).name, written


def _problem(path: Path, written: Any) -> str | None:
    if path.is_file() and not (isinstance(written, dict) and {"size", "sha256"} <= written.keys()):
        return f"the trainer record has no size and sha256 of {path}"
    found = damage(path, written)
    return f"{path} {found}" if found else None
