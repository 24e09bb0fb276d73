"""Run stores that are not needed any more. The duration of a finished run stays known."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from stages.contracts.errors import RunInUseError
from stages.contracts.file_lock import hold_lock
from stages.runs.durations import record_duration
from stages.runs.layout import FINISHED_FILE, lock_of, locks, stores, trash
from stages.runs.store import set_aside


def prune(root: Path, keep: int = 3, *, current: str | None = None) -> list[str]:
    """Remove all finished stores below *root* but the newest *keep*; return the keys of those removed.

    The store with the key *current* counts as the newest, whatever the clock was. Stores that are not
    finished or in use stay. Killed at any moment, it leaves complete stores and can be called again.
    """
    finished = {path: _finished_at(path) for path in stores(root)}
    newest = sorted(
        (path for path, time in finished.items() if time),
        key=lambda path: (path.name != current, -finished[path], path),
    )
    return _remove(root, newest[keep:], finished=True)


def prune_unfinished(root: Path) -> list[str]:
    """Remove all stores below *root* that are not finished and that nobody works in; their keys."""
    return _remove(root, [path for path in stores(root) if not _finished_at(path)], finished=False)


def _remove(root: Path, candidates: Iterable[Path], *, finished: bool) -> list[str]:
    """Those *candidates* that are still *finished*, or still not, and free."""
    removed = []
    for path in candidates:
        try:
            with hold_lock(lock_of(path)):
                if path.is_dir() and bool(_finished_at(path)) == finished:
                    if finished:
                        record_duration(path)
                    set_aside(path)
                    lock_of(path).unlink()
                    removed.append(path.name)
        except RunInUseError:
            continue
    _sweep(root)
    return removed


def _sweep(root: Path) -> None:
    """Clear away what was set aside, now or by one who was killed, and locks of stores that are gone."""
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


def _finished_at(path: Path) -> int:
    """When the store *path* was finished, 0 where it is not."""
    try:
        return (path / FINISHED_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
