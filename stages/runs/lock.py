"""A lock file that one opener has to itself, and that goes with its process, however that ends.

The lock is the kernel's, so none is ever stale. The file says who has it; when the holder lets go in good
order it is empty again, so what it says without a lock on it is who died.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.contracts.errors import RunInUseError
from stages.runs.owner import Owner, from_json, to_json

_TRIES = 20
_PAUSE_SECONDS = 0.01
"""Who only looks whether a lock is held holds it for an instant, and is not to be taken for a run."""
_LONGEST = 4096


class _Held:
    """The locks that this process has: asked first, since on NFS to close any handle of a file unlocks it."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.handles: dict[Path, int] = {}
        self.watches_forks = False

    def forget(self) -> None:
        """In a forked child, for example one that loads data: the lock is its parent's, and dies with it."""
        for handle in self.handles.values():
            os.close(handle)
        self.handles.clear()
        self.guard = threading.RLock()


_held = _Held()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock file *path*, which is made where it is missing.

    Raises `RunInUseError` where another process, or another opener in this one, has it.
    """
    path = path.resolve()
    _acquire(path)
    try:
        yield
    finally:
        _release(path)


def is_held(path: Path) -> bool:
    """Whether anybody has the lock file *path*."""
    path = path.resolve()
    with _held.guard:
        if path in _held.handles:
            return True
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _locked(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)


def holder(path: Path) -> Owner | None:
    """Who has the lock file *path*, or had it when it died; None where the last one let go."""
    path = path.resolve()
    with _held.guard:
        if path in _held.handles:
            return Owner.this_process()
        try:
            return from_json(path.read_bytes()[:_LONGEST])
        except FileNotFoundError:
            return None


def _acquire(path: Path) -> None:
    with _held.guard:
        if not _held.watches_forks:
            os.register_at_fork(after_in_child=_held.forget)
            _held.watches_forks = True
        if path in _held.handles:
            raise _in_use(path)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_SECONDS)
            if _try_to_acquire(path):
                return
    raise _in_use(path)


def _try_to_acquire(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if _locked(handle, fcntl.LOCK_EX) and _is_still(handle, path):
            _write(handle, to_json(Owner.this_process()).encode())
            _held.handles[path] = handle
            return True
    finally:
        if path not in _held.handles:
            os.close(handle)
    return False


def _release(path: Path) -> None:
    with _held.guard:
        handle = _held.handles.pop(path, None)
        if handle is None:  # in a forked child, which never had it
            return
        try:
            _write(handle, b"")
            fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(handle: int, path: Path) -> bool:
    """Whether *path* is the file that was opened: who prunes a store removes its lock file too."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _write(handle: int, text: bytes) -> None:
    with suppress(OSError):  # a full disk: the lock holds all the same, it only does not say whose it is
        os.ftruncate(handle, 0)
        os.pwrite(handle, text, 0)


def _in_use(path: Path) -> RunInUseError:
    owner = holder(path)
    gone = " (which is gone: something it started is still there)" if owner and owner.is_gone() else ""
    return RunInUseError(
        f"the run store {path.with_suffix('')} is in use by {owner or 'another process'}{gone}: "
        "wait for it, or end it; this run changed nothing"
    )
