"""Removal of run stores that are no longer needed."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stages.contracts.errors import RunInUseError
from stages.runs.layout import FINISHED_FILE, lock_of, locks, ranks_of, stores, trash
from stages.runs.store import move_to_trash
from stages.system.file_lock import hold_lock


def prune(root: Path, keep: int = 3, *, current: str | None = None) -> list[str]:
    """Remove all finished stores below *root* but the newest *keep*; return the keys of those removed.

    The store with the key *current* counts as the newest, whatever its time. Unfinished stores and stores in
    use stay. If the process is killed, or the disk fails, the next call removes the rest.
    """
    with suppress(OSError):
        return _prune(root, keep, current)
    return []


def _prune(root: Path, keep: int, current: str | None) -> list[str]:
    finished = {path: _finish_time(path) for path in stores(root)}
    newest = sorted(
        (path for path, time in finished.items() if time),
        key=lambda path: (path.name != current, -finished[path], path),
    )
    return _remove(root, newest[keep:], finished=True)


def prune_unfinished(root: Path) -> list[str]:
    """Remove all unfinished stores below *root* that no process works in; return their keys."""
    return _remove(root, [path for path in stores(root) if not _finish_time(path)], finished=False)


def _remove(root: Path, candidates: Iterable[Path], *, finished: bool) -> list[str]:
    """Remove the *candidates* that no process works in, unless their state has changed; return their keys."""
    removed = []
    for path in candidates:
        try:
            with hold_lock(lock_of(path)):
                if path.is_dir() and bool(_finish_time(path)) == finished:
                    move_to_trash(path)
                    shutil.rmtree(ranks_of(path), ignore_errors=True)
                    lock_of(path).unlink()
                    removed.append(path.name)
        except RunInUseError:
            continue
    _empty_trash(root)
    return removed


def _empty_trash(root: Path) -> None:
    """Delete the trash, also of killed processes, and the lock files of removed stores."""
    for path in trash(root):
        shutil.rmtree(path, ignore_errors=True)
    for lock in locks(root):
        store = lock.with_suffix("")
        if store.exists():
            continue
        try:
            with hold_lock(lock):
                if not store.exists():
                    lock.unlink(missing_ok=True)
        except RunInUseError:
            continue


def _finish_time(path: Path) -> int:
    """Return when the store *path* was finished, in nanoseconds; 0 if it is not."""
    try:
        return (path / FINISHED_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
