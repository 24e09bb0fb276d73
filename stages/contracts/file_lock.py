"""File locks of the kernel: a lock ends with the process that holds it, so no lock is ever stale.

`hold_lock` writes the holder into the lock file and empties it when it releases the lock. A file that is not
empty and not locked therefore names a holder that was killed.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from stages.contracts.errors import RunInUseError
from stages.contracts.processes import ProcessIdentity, from_json, to_json

_MAX_TRIES = 20
_PAUSE_SECONDS = 0.01
"""Pause between tries: `is_locked` in another process holds the lock for an instant, which is not a run."""
_MAX_HOLDER_BYTES = 4096

LockFile = int | IO[Any]
"""An open file: its descriptor, or its file object."""


def try_lock(file: LockFile) -> bool:
    """Lock *file* exclusively and return true, or return false if another process has a lock on it."""
    return _try(file, fcntl.LOCK_EX)


def try_shared_lock(file: LockFile) -> bool:
    """Lock *file* together with others and return true, or return false if it is locked exclusively."""
    return _try(file, fcntl.LOCK_SH)


def wait_for_lock(file: LockFile) -> None:
    """Lock *file* exclusively, and wait until that is possible."""
    fcntl.flock(file, fcntl.LOCK_EX)


def unlock(file: LockFile) -> None:
    """Release the lock on *file*."""
    fcntl.flock(file, fcntl.LOCK_UN)


class _HeldLocks:
    """The locks of this process: checked first, since closing any descriptor of a file on NFS unlocks it."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.handles: dict[Path, int] = {}
        self.watches_forks = False

    def forget(self) -> None:
        """Close the descriptors in a forked child, such as a loader's worker: the locks are its parent's."""
        for handle in self.handles.values():
            os.close(handle)
        self.handles.clear()
        self.guard = threading.RLock()


_locks = _HeldLocks()


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock file *path*, which is created if it is missing.

    Raises `RunInUseError` if another process, or another thread of this one, holds it.
    """
    path = path.resolve()
    _acquire(path)
    try:
        yield
    finally:
        _release(path)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file *path*."""
    path = path.resolve()
    with _locks.guard:
        if path in _locks.handles:
            return True
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not try_shared_lock(handle)
        finally:
            os.close(handle)


def lock_holder(path: Path) -> ProcessIdentity | None:
    """Return the process that holds the lock file *path*, or was killed while it did; None if released."""
    path = path.resolve()
    with _locks.guard:
        if path in _locks.handles:
            return ProcessIdentity.of_this_process()
        try:
            return from_json(path.read_bytes()[:_MAX_HOLDER_BYTES])
        except FileNotFoundError:
            return None


def _acquire(path: Path) -> None:
    with _locks.guard:
        if not _locks.watches_forks:
            os.register_at_fork(after_in_child=_locks.forget)
            _locks.watches_forks = True
        if path in _locks.handles:
            raise _in_use(path)
        for attempt in range(_MAX_TRIES):
            if attempt:
                time.sleep(_PAUSE_SECONDS)
            if _try_to_acquire(path):
                return
    raise _in_use(path)


def _try_to_acquire(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if try_lock(handle) and _is_at(handle, path):
            _write(handle, to_json(ProcessIdentity.of_this_process()).encode())
            _locks.handles[path] = handle
            return True
    finally:
        if path not in _locks.handles:
            os.close(handle)
    return False


def _release(path: Path) -> None:
    with _locks.guard:
        handle = _locks.handles.pop(path, None)
        if handle is None:  # in a forked child, which never held it
            return
        try:
            _write(handle, b"")
            unlock(handle)
        finally:
            os.close(handle)


def _try(file: LockFile, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(handle: int, path: Path) -> bool:
    """Return whether *path* is the file that was opened: removing a store removes its lock file too."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _write(handle: int, text: bytes) -> None:
    with suppress(OSError):  # a full disk: the lock is held without the name of its holder
        os.ftruncate(handle, 0)
        os.pwrite(handle, text, 0)


def _in_use(path: Path) -> RunInUseError:
    holder = lock_holder(path)
    ended = (
        " (which has ended: a process that it started still runs)" if holder and holder.has_ended() else ""
    )
    return RunInUseError(
        f"the run store {path.with_suffix('')} is in use by {holder or 'another process'}{ended}. "
        "Wait for it or stop it; this run changed nothing"
    )
