"""Repair of the files that DVC writes in place: dvc.lock, and the rwlock with its readers and writers.

A kill can truncate them, and DVC refuses to work with a truncated one. An intact dvc.lock is backed up before
each stage, and the backup replaces a truncated one. DVC then finds later results in its run-cache, and `fit`
in its run store.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.project.lockfile import is_truncated, is_truncated_content, parse_lockfile
from stages.contracts.errors import StageError
from stages.runs.layout import LOCKFILE_BACKUP, LOCKFILE_BACKUP_LOCK
from stages.system.file_lock import open_lock, try_lock, wait_for_lock
from stages.system.files import open_atomic

LOCKFILE = Path("dvc.lock")
TEMPORARY = Path(".dvc/tmp")
RWLOCK = TEMPORARY / "rwlock"


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
    try:
        content = json.loads(path.read_text())
        read = [each for several in content.get("read", {}).values() for each in several]
        return all(
            int(each["pid"]) and str(each["cmd"]) for each in (*content.get("write", {}).values(), *read)
        )
    except FileNotFoundError:
        return True
    except (ValueError, TypeError, KeyError, AttributeError):
        return False


@contextmanager
def try_dvc_lock(lock: Path) -> Iterator[bool]:
    """Hold DVC's own *lock* in the block if it is free, and yield whether it was.

    While it is held, no DVC process writes the file that it guards.
    """
    with os.fdopen(open_lock(lock), "r+") as file:
        yield try_lock(file)


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
