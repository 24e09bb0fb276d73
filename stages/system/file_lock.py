"""File locks of the kernel: a lock ends with the process that holds it, so no lock is ever stale.

`hold_lock` writes the holder into the lock file and empties it when it releases the lock. A file that is not
empty and not locked therefore names a holder that was killed.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stages.contracts.errors import RunInUseError, StageError

if TYPE_CHECKING:
    from stages.system.processes import ProcessIdentity

_MAX_TRIES = 20
_PAUSE_SECONDS = 0.01
"""Pause between tries: `is_locked` in another process holds the lock for an instant, which is not a run."""
_MAX_HOLDER_BYTES = 4096
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags with which an open neither follows a link nor waits for the other end of a pipe."""

LockFile = int | IO[Any]
"""An open file: its descriptor, or its file object."""


def open_lock(path: Path) -> int:
    """Open the lock file *path*, which is created if it is missing, and return its descriptor.

    Its content stays, and what is written is appended. Raises `StageError` if it is a link, whose target
    would be written, or not a regular file.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_a_lock(path) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_a_lock(path)
    return handle


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


def _is_plain(handle: int) -> bool:
    mode = os.fstat(handle).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def is_at(handle: int, path: Path) -> bool:
    """Return whether *path* is the file opened as *handle*, which another process may have removed."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


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
    path = _resolve(path)
    _acquire(path)
    try:
        yield
    finally:
        _release(path)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file *path*."""
    path = _resolve(path)
    with _locks.guard:
        if path in _locks.handles:
            return True
        with open_to_read(path) as handle:
            return handle is not None and not try_shared_lock(handle)


def lock_holder(path: Path) -> "ProcessIdentity | None":
    """Return the process that holds the lock file *path*, or was killed while it did; None if released."""
    path, processes = _resolve(path), _import_processes()
    holder: ProcessIdentity | None = None
    with _locks.guard:
        if path in _locks.handles:
            holder = processes.ProcessIdentity.of_this_process()
        else:
            with suppress(IsADirectoryError), open_to_read(path) as handle:
                if handle is not None:
                    holder = processes.from_json(os.pread(handle, _MAX_HOLDER_BYTES, 0))
    return holder


def _import_processes() -> Any:
    """Return the module of process identities, which loads psutil: few that write files need it."""
    return import_module("stages.system.processes")


def _resolve(path: Path) -> Path:
    """Return the absolute *path* without links, except for its last part, which is not followed."""
    return path.parent.resolve() / path.name


@contextmanager
def open_to_read(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of the file or folder *path*; None if it is missing, a link, a pipe or a device."""
    handle = None
    try:
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | _FLAGS)
        yield handle if handle is not None and _is_plain(handle) else None
    finally:
        if handle is not None:
            os.close(handle)


def _acquire(path: Path) -> None:
    with _locks.guard:
        if not _locks.watches_forks:
            os.register_at_fork(after_in_child=_locks.forget)
            _locks.watches_forks = True
        if path in _locks.handles:
            raise _in_use(path)
        for _ in range(_MAX_TRIES):
            if _try_to_acquire(path):
                return
            time.sleep(_PAUSE_SECONDS)
    raise _in_use(path)


def _try_to_acquire(path: Path) -> bool:
    handle = open_lock(path)
    try:
        if try_lock(handle) and is_at(handle, path):
            processes = _import_processes()
            _write(handle, processes.to_json(processes.ProcessIdentity.of_this_process()).encode())
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


def _write(handle: int, text: bytes) -> None:
    with suppress(OSError):  # a full disk: the lock is held without the name of its holder
        os.ftruncate(handle, 0)
        os.pwrite(handle, text, 0)


def _not_a_lock(path: Path) -> StageError:
    return StageError(f"{path} is a link or not a regular file, and locks are regular files. Remove it")


def _in_use(path: Path) -> RunInUseError:
    holder = lock_holder(path)
    owner = str(holder or "another process")
    if holder and holder.has_ended():
        owner += " (which has ended: a process that it started still runs)"
    return RunInUseError(
        f"the run store {path.with_suffix('')} is in use by {owner}. Wait for it or stop it; this run "
        "changed nothing"
    )
