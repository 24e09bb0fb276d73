"""A run store: the directory in which one run works until it is finished, in one process after another.

`stages.runs.layout` lists its files. `prune` removes stores that are no longer needed.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from stages.contracts.deliveries import is_delivered
from stages.contracts.errors import RunInUseError, StageError
from stages.contracts.text import format_megabytes
from stages.contracts.user_code import user_frames
from stages.runs.key import plain, run_key
from stages.runs.layout import (
    FINISHED_FILE,
    KEY_FILE,
    TELEMETRY_FOLDER,
    free_logger_path,
    list_rungs,
    lock_of,
    locks,
    new_trash_path,
    ranks_of,
    stores,
    trash,
)
from stages.runs.manifest import Manifest, add_checksum, describe_store, read_finished
from stages.system.file_lock import hold_lock, is_at, is_locked
from stages.system.files import read_json, sync_directory, write_text


class RunStore:
    """A store that this process holds the lock of; `open_store` creates it."""

    def __init__(self, path: Path, entries: dict[str, Any]) -> None:
        self.path = path
        """The directory to work in."""
        self.entries = entries
        self._handle = self._make()
        """The open directory, by which a removal is detected."""

    def _make(self) -> int:
        """Create the directory if it is missing, check that it is that of this run, and open it."""
        self.path.mkdir(exist_ok=True)
        file = self.path / KEY_FILE
        content = read_json(file)
        if content != self.entries:
            if content is not None and run_key(content) != self.key:
                raise StageError(
                    f"{file} is the key of run {run_key(content)}, not of {self.key}: the store was moved "
                    f"or edited. Remove {self.path}, or rename it to keep its files"
                )
            write_text(file, _text(self.entries))
            sync_directory(self.path.parent)
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        """Close the directory."""
        os.close(self._handle)

    @property
    def key(self) -> str:
        """The name of the directory."""
        return self.path.name

    @property
    def finished(self) -> dict[str, Any] | None:
        """The values that `finish` was called with; None if the run is not finished."""
        finish = read_finished(self.path)
        return None if finish is None else finish.facts

    @property
    def manifest(self) -> Manifest:
        """Size and sha256 of each file of a finished run; empty if the run is not finished."""
        finish = read_finished(self.path)
        return {} if finish is None else finish.files

    def finish(self, facts: Mapping[str, Any], recorded: Manifest | None = None) -> None:
        """Record that the run is finished, with *facts* (plain values) and the manifest of its files.

        *recorded* has the sizes and hashes recorded when files were written; the other files are read now.
        Raises `StageError` if the store was removed.
        """
        with _explain_errors(self.path):
            self.check_exists()
            files = describe_store(self.path, recorded or {})
            write_text(self.path / FINISHED_FILE, _text(add_checksum({**facts, "files": files})))

    def check_exists(self) -> None:
        """Raise `StageError` if the directory that was opened was removed or renamed."""
        if not is_at(self._handle, self.path):
            raise StageError(
                f"{self.path} was removed or replaced while the run worked in it. Nothing was recorded. "
                "Run the same command again: it trains from the start"
            )

    @contextmanager
    def explain_removal(self) -> Iterator[None]:
        """Raise `StageError` for an error in the block if the store was removed, which then is the cause."""
        try:
            yield
        except (StageError, OSError):
            self.check_exists()
            raise

    def reopen(self) -> None:
        """Mark a finished run as unfinished, for example to train more epochs."""
        (self.path / FINISHED_FILE).unlink(missing_ok=True)
        sync_directory(self.path)

    def discard_corrupt_finish(self) -> bool:
        """Remove a ``finished.json`` that is corrupt; return whether there was one."""
        if self.finished is not None or not (self.path / FINISHED_FILE).exists():
            return False
        self.reopen()
        return True

    def restart(self) -> None:
        """Remove everything that the run wrote, so that it starts over.

        If the process is killed, the store is unchanged or empty.
        """
        with _explain_errors(self.path):
            _delete(move_to_trash(self.path))
            before, self._handle = self._handle, self._make()
            os.close(before)


@contextmanager
def open_store(root: Path, entries: Mapping[str, Any]) -> Iterator[RunStore]:
    """Open the store, below *root*, of the run with the key *entries*, and hold its lock in the block.

    Raises `RunInUseError` if another process or thread holds it, and `StageError` if the store cannot be
    created or is that of another run.
    """
    path = root.resolve() / run_key(entries)
    with ExitStack() as stack:
        with _explain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(lock_of(path)))
            store = stack.enter_context(closing(RunStore(path, plain(entries))))
        yield store


@contextmanager
def explain_disk_errors(root: Path) -> Iterator[None]:
    """Raise `StageError` for an `OSError` in the block, unless the user's code raised it.

    *root* is the path in the message if the error has none.
    """
    try:
        yield
    except OSError as error:
        if user_frames(error):
            raise
        # not of a file of the run: the reader has ended, as in `learner run | head -1`
        place = (
            "a pipe, such as standard output"
            if isinstance(error, BrokenPipeError)
            else error.filename or root
        )
        raise StageError(
            f"{place}: {error.strerror or error}. No progress was lost. Fix this and "
            "run the same command again to resume"
        ) from error


def move_to_trash(path: Path) -> Path:
    """Rename the store *path*, which removes it atomically, and return the new path for its deletion."""
    trash = new_trash_path(path)
    path.rename(trash)
    sync_directory(path.parent)
    return trash


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Raise `StageError` for an `OSError` in the block, such as a full disk or a missing permission."""
    try:
        yield
    except OSError as error:
        raise StageError(
            f"the run store {path} cannot be used: {error.strerror}. Check the free space and the permissions"
        ) from error


def check_space(path: Path, needed_bytes: int) -> None:
    """Raise `StageError` if the disk of *path* has less than *needed_bytes* free."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise StageError(
            f"the disk of {path} has {format_megabytes(free)} free, but the checkpoints to keep and one more "
            f"take up to {format_megabytes(needed_bytes)}. Free some space, or keep fewer checkpoints "
            "(fit.keep)"
        )


def prune_after_run(root: Path, current: str | None = None) -> list[str]:
    """Remove stores as `prune` does, unless a sweep in progress may resume them; return their keys."""
    return [] if any(map(is_locked, list_rungs(root))) else prune(root, current=current)


def prune(root: Path, keep: int = 3, *, current: str | None = None) -> list[str]:
    """Remove all finished stores below *root* but the newest *keep*; return the keys of those removed.

    The store with the key *current* counts as the newest, whatever its time. Unfinished stores and stores in
    use stay. If the process is killed, or the disk fails, the next call removes the rest.
    """
    with suppress(OSError):
        times = {path: _finish_time(path) for path in stores(root)}
        newest = sorted(
            (path for path, time in times.items() if time),
            key=lambda path: (path.name != current, -times[path], path),
        )
        return _remove_stores(root, newest[keep:], finished=True)
    return []


def prune_unfinished(root: Path) -> list[str]:
    """Remove all unfinished stores below *root* that no process works in; return their keys."""
    return _remove_stores(root, [path for path in stores(root) if not _finish_time(path)], finished=False)


def _remove_stores(root: Path, candidates: Iterable[Path], *, finished: bool) -> list[str]:
    """Remove the *candidates* that no process works in, unless their state has changed; return their keys."""
    removed = []
    for path in candidates:
        with suppress(RunInUseError), hold_lock(lock_of(path)):
            if path.is_dir() and bool(_finish_time(path)) == finished:
                move_to_trash(path)
                shutil.rmtree(ranks_of(path), ignore_errors=True)
                lock_of(path).unlink()
                removed.append(path.name)
    _empty_trash(root)
    return removed


def _delete(trash_path: Path) -> None:
    """Delete a removed store, except for the files of trackers that no service has received."""
    for folder in (trash_path / TELEMETRY_FOLDER).glob("*"):
        if not is_delivered(folder):
            target = free_logger_path(trash_path, folder.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)
    shutil.rmtree(trash_path, ignore_errors=True)


def remove_sent_folder(root: Path, folder: Path) -> None:
    """Remove the *folder* of a logger of a removed store if a service has received all of it."""
    if folder.parent.parent == root / TELEMETRY_FOLDER and is_delivered(folder):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another logger has a folder there
            folder.parent.rmdir()


def _empty_trash(root: Path) -> None:
    """Delete the trash, also of killed processes, and the lock files of removed stores."""
    for path in trash(root):
        _delete(path)
    for lock in locks(root):
        store = lock.with_suffix("")
        if store.exists():
            continue
        with suppress(RunInUseError), hold_lock(lock):
            if not store.exists():
                lock.unlink(missing_ok=True)


def _finish_time(path: Path) -> int:
    """Return when the store *path* was finished, in nanoseconds; 0 if it is not."""
    try:
        return (path / FINISHED_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
