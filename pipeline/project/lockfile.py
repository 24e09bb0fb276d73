"""Reading of dvc.lock, and repair of what a killed DVC leaves: truncated and temporary files, empty folders.

DVC writes dvc.lock and the rwlock in place, and refuses to work with a truncated one. An intact dvc.lock is
backed up before each stage, and the backup replaces a truncated one. DVC then finds later results in its
run-cache, and `fit` in its run store. The rwlock has the readers and writers of outputs.
"""

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml.error import YAMLError

from pipeline.project.cache import find_cache
from pipeline.project.yaml_files import MAX_YAML_BYTES, load_yaml
from stages.contracts.errors import StageError
from stages.runs.layout import LOCKFILE_BACKUP, LOCKFILE_BACKUP_LOCK
from stages.system.file_lock import open_lock, try_lock, wait_for_lock
from stages.system.files import is_md5, open_atomic, read_json_value, read_regular

HEAD = "schema: '2.0'\n"
"""First line of what DVC writes."""
RESTORE = "Run `git checkout dvc.lock`"
_NO_MD5 = "0" * 32
_CONFLICT = re.compile(r"^(<<<<<<<|=======|>>>>>>>)( .*)?$", re.MULTILINE)
LOCKFILE = Path("dvc.lock")
PARAMS_FILE = "params.yaml"
VERSIONS_FILE, VERSION = "versions.yaml", "VERSION"
"""The file, and the name in the module of a stage, that have the versions of the stages."""
TEMPORARY = Path(".dvc/tmp")
EMPTY_SECONDS = 0.1
"""The age of an empty folder to which DVC, which may run in a copy of the project, is not about to write."""
RWLOCK = TEMPORARY / "rwlock"
TEMPORARY_FILE = re.compile(r"\.[A-Za-z0-9_-]{22}\.tmp")
"""Names of the files with which DVC tests links, and to which it copies before it renames them."""
MIN_TEMPORARY_FILE_AGE_SECONDS = 600.0
"""The age of a temporary file in the cache that no process is writing any more."""


def read_lockfile(path: Path) -> dict[str, Any]:
    """Return the content of *path*; empty if it is missing. Raises `StageError` if it is not a dvc.lock."""
    try:
        return parse_lockfile(read_regular(path, MAX_YAML_BYTES).decode("utf-8"), path)
    except FileNotFoundError:
        return {}
    except IsADirectoryError as error:
        raise StageError(f"{path} is a directory, not a file. Remove it. {RESTORE}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StageError(f"{path} is not a dvc.lock: {reason}. {RESTORE}") from error


def parse_lockfile(text: str, source: Path | str) -> dict[str, Any]:
    """Return the content of *text*, read from *source*. Raises `StageError` if it is not a dvc.lock."""
    if conflict := _CONFLICT.search(text):
        line = text.count("\n", 0, conflict.start()) + 1
        raise StageError(
            f"{source} is not a dvc.lock: line {line} is a conflict marker of git. Run `git checkout HEAD -- "
            "dvc.lock`, or during a merge `git checkout --theirs dvc.lock`, and then `learner run`"
        )
    try:
        content = _load(text)
        problem = _find_problem(content)
    except YAMLError as error:
        problem = f"it is not valid YAML: {error}"
    if problem:
        raise StageError(f"{source} is not a dvc.lock: {problem}. {RESTORE}")
    return dict(content)


def list_inputs(stages: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the entry of each dep of *stages*, those of a dvc.lock, that none of them writes, by path."""
    entries = list(stages)
    outputs = {out["path"] for stage in entries for out in stage.get("outs") or []}
    deps = {dep["path"]: dep for stage in entries for dep in stage.get("deps") or []}
    return {
        path: dep
        for path, dep in deps.items()
        if not any(PurePosixPath(path).is_relative_to(output) for output in outputs)
    }


def list_other_params(stages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each params file of *stages* but params.yaml, and its params without the version of a stage."""
    for stage in stages:
        for name, values in stage.get("params", {}).items():
            if name not in (PARAMS_FILE, VERSIONS_FILE):
                yield name, {key: value for key, value in values.items() if key != VERSION}


def check_lockfile(path: Path) -> None:
    """Raise `StageError` if *path* is neither a dvc.lock nor a truncated one."""
    if not is_truncated(path):
        read_lockfile(path)


def is_truncated(path: Path) -> bool:
    """Return whether *path* is the beginning of a dvc.lock, as a kill or a full disk leaves it."""
    try:
        return is_truncated_content(read_regular(path, MAX_YAML_BYTES))
    except OSError:
        return False


def is_truncated_content(encoded: bytes) -> bool:
    """Return whether *encoded*, the content of a file, is the beginning of a dvc.lock."""
    text = encoded.decode("utf-8", "surrogateescape")  # a character that is cut is not valid YAML
    if not text.strip("\0 \n") or HEAD.startswith(text):  # DVC writes no dvc.lock without stages
        return True
    if _CONFLICT.search(text) or not text.startswith(HEAD):
        return False
    if "\0" in text:
        return True
    try:
        content = _load(text)
    except YAMLError:
        return True
    return _last(content) is None or (not text.endswith("\n") and bool(_find_problem(content)))


def _last(content: Any) -> Any:
    """Return the last value of *content*, at any depth."""
    while isinstance(content, dict | list) and content:
        content = list(content.values())[-1] if isinstance(content, dict) else content[-1]
    return content


@lru_cache(maxsize=1024)
def _load(text: str) -> Any:
    """Return the content of *text*, which a stage checks several times, and which runs may have in common."""
    return load_yaml(text)


def _find_problem(content: Any) -> str:
    """Return the reason for which *content* is not that of a dvc.lock; empty if it is."""
    if not isinstance(content, dict) or "schema" not in content:
        return f"it has no schema, but is {str(content)[:60]!r}"
    stages = content.get("stages", {})
    if not isinstance(stages, dict):
        return f"stages is {str(stages)[:60]!r}, not a mapping"
    for name, stage in stages.items():
        if not isinstance(stage, dict) or "cmd" not in stage:
            return f"stages.{name} is {str(stage)[:60]!r}, not a mapping with a cmd"
        for key in ("deps", "outs"):
            entries = stage.get(key, [])
            if not isinstance(entries, list):
                return f"stages.{name}.{key} is {str(entries)[:60]!r}, not a list of paths with hashes"
            for entry in entries:
                if not _is_entry(entry):
                    return f"stages.{name}.{key} has {str(entry)[:100]!r}, not a path with a hash"
        params = stage.get("params", {})
        if not isinstance(params, dict) or not all(isinstance(values, dict) for values in params.values()):
            return f"stages.{name}.params is {str(params)[:60]!r}, not a mapping of files"
    return ""


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("path"), str)
        and is_md5(entry.get("md5", _NO_MD5))
        and entry.get("hash", "md5") == "md5"
    )


def back_up_lockfile() -> None:
    """Back up dvc.lock if it is intact and ends with a newline, as DVC writes it.

    A beginning of the backup does not replace it: it may be a dvc.lock that was cut at the end of a line.
    The watchdog of the last command may do this at the same time, so they wait for each other.
    """
    LOCKFILE_BACKUP_LOCK.parent.mkdir(exist_ok=True)
    with os.fdopen(open_lock(LOCKFILE_BACKUP_LOCK), "r+") as lock:
        wait_for_lock(lock)
        if not LOCKFILE.exists():
            LOCKFILE_BACKUP.unlink(missing_ok=True)
            return
        content = LOCKFILE.read_bytes()  # once: DVC may be writing it
        is_new = not (LOCKFILE_BACKUP.exists() and LOCKFILE_BACKUP.read_bytes().startswith(content))
        if is_new and content.endswith(b"\n") and _is_intact(content):
            with open_atomic(LOCKFILE_BACKUP) as file:
                file.write(content)


def repair_lockfiles() -> None:
    """Repair the truncated files of the project in the current folder.

    Files that another process may be writing stay unchanged, and so does a dvc.lock that DVC did not write.
    """
    with suppress(OSError), try_dvc_lock(TEMPORARY / "lock") as free:
        if free and is_truncated(LOCKFILE):
            _restore_lockfile()
    with suppress(OSError), try_dvc_lock(TEMPORARY / "rwlock.lock") as free:
        if free and not is_intact_rwlock(RWLOCK):
            RWLOCK.unlink()


def remove_empty_entries() -> None:
    """Remove empty folders of the run-cache, as after an error before DVC could write an entry.

    DVC fails if it finds one. The cache may be large and on another machine, so this is for a process that
    nothing waits for.
    """
    with suppress(OSError), try_dvc_lock(TEMPORARY / "lock") as free:
        cache = find_cache(TEMPORARY.parent) if free else None
        for folder in cache.glob("runs/??/*") if cache else ():
            with suppress(OSError):  # it is not empty
                if time.time() - folder.stat().st_mtime < EMPTY_SECONDS and not any(folder.iterdir()):
                    time.sleep(EMPTY_SECONDS)
                folder.rmdir()


def is_intact_lockfile(path: Path) -> bool:
    """Return whether the dvc.lock *path* is missing, or DVC can read it."""
    try:
        return _is_intact(path.read_bytes())
    except FileNotFoundError:
        return True


def has_intact_backup() -> bool:
    """Return whether there is a backup with which `repair_lockfiles` replaces a truncated dvc.lock."""
    return LOCKFILE_BACKUP.exists() and is_intact_lockfile(LOCKFILE_BACKUP)


def is_intact_rwlock(path: Path) -> bool:
    """Return whether DVC's list *path* of readers and writers is missing, or DVC can read it."""
    owners = read_owners(path)
    return owners is not None and all(map(all, owners.items()))


def read_owners(path: Path, *, writers_only: bool = False) -> dict[int, str] | None:
    """Return the command of each process that *path* names; None if *path* does not have DVC's format."""
    try:
        content = read_json_value(path)
        readers = (entry for entries in content.get("read", {}).values() for entry in entries)
        owners = (*content.get("write", {}).values(), *(() if writers_only else readers))
        return {int(entry["pid"]): str(entry["cmd"]) for entry in owners}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


@contextmanager
def try_dvc_lock(lock: Path) -> Iterator[bool]:
    """Hold DVC's own *lock* in the block if it is free, and yield whether it was.

    While it is held, no DVC process writes the file that it guards.
    """
    with os.fdopen(open_lock(lock), "r+") as file:
        yield try_lock(file)


def find_temporary_files(folder: Path) -> set[Path]:
    """Return the temporary files of DVC in *folder*."""
    return {path for path in folder.glob(".*.tmp") if TEMPORARY_FILE.fullmatch(path.name)}


def remove_temporary_files(folder: Path, oldest: float = math.inf) -> None:
    """Remove the temporary files of DVC in *folder* that were modified before *oldest*, in seconds."""
    for path in find_temporary_files(folder):
        with suppress(FileNotFoundError):  # DVC has renamed it
            if path.stat().st_mtime < oldest:
                path.unlink()


def _is_intact(content: bytes) -> bool:
    """Return whether DVC can read *content* as a dvc.lock."""
    try:
        parse_lockfile(content.decode("utf-8"), LOCKFILE)
    except (StageError, UnicodeDecodeError):
        return False
    return not is_truncated_content(content)


def _restore_lockfile() -> None:
    """Replace dvc.lock with its backup, or remove it if there is no intact backup."""
    if not has_intact_backup():
        LOCKFILE.unlink()
        return
    with open_atomic(LOCKFILE) as file:
        file.write(LOCKFILE_BACKUP.read_bytes())
