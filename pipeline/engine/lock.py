"""The project lock, which allows one run in a project at a time.

A flow holds it from its first stage to its last. A stage that DVC started in its own process holds it too.
DVC then keeps it until it has recorded its last stage, because it reads params.yaml again to record a stage.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.engine.process_tree import find_dvc
from pipeline.project.lockfile import TEMPORARY, try_dvc_lock
from pipeline.project.paths import find_above
from stages.contracts.errors import StageError
from stages.runs.layout import PROJECT_LOCK
from stages.system import processes
from stages.system.file_lock import open_lock, try_lock, unlock
from stages.system.files import read_json_value
from stages.system.processes import ProcessIdentity, from_json, is_alive, to_json

EXIT_WAIT_SECONDS = 60
EXPERIMENT = "exps/run/workspace/workspace.json"
"""The file below `TEMPORARY` with the pid of the `dvc exp run` that runs in the workspace."""


@dataclass(frozen=True)
class _Holder:
    """The process that holds the lock, according to the lock file."""

    pid: str
    host: str
    ancestors: tuple[int, ...] = ()
    dvc: ProcessIdentity | None = None
    """The DVC process that started the holder as a stage."""

    @classmethod
    def read(cls, file: IO[str]) -> "_Holder":
        file.seek(0)
        first, _, second = file.read().partition("\n")
        pid, host, *ancestors = [*first.split(), "", ""]
        return cls(pid or "unknown", host, tuple(map(int, filter(None, ancestors))), from_json(second))

    def is_transient(self) -> bool:
        """Return whether the lock is about to be released, or its holder is about to write its record.

        The file is empty just after the lock was acquired and just before it is released. If the holder, or
        an ancestor that it depends on, has exited, then only a worker of the holder remains, or the holder is
        about to terminate.
        """
        if not self.host:
            return True
        if self.host != socket.gethostname():
            return False
        return not all(map(is_alive, (int(self.pid), *self.ancestors)))


@contextmanager
def project_lock(
    ancestors: Sequence[int] = (), *, dvc: int | None = None, timeout_seconds: float = 0.0
) -> Iterator[None]:
    """Hold the lock of the project in the current folder; it is released when the process ends in any way.

    *ancestors* are the processes with which this one terminates. *dvc* is the one of them in which DVC runs;
    it keeps the lock until it has recorded its last stage. Raises `StageError` if another process holds the
    lock for longer than *timeout_seconds*, or `EXIT_WAIT_SECONDS` if it is about to be released.
    """
    with _open() as file:
        _acquire(file, timeout_seconds)
        os.register_at_fork(
            after_in_child=file.close
        )  # otherwise a worker of a loader would hold the lock too
        file.truncate(0)
        file.write(" ".join(map(str, (os.getpid(), socket.gethostname(), *ancestors))))
        if dvc:
            file.write(f"\n{to_json(ProcessIdentity.of(dvc))}")
        file.flush()
        try:
            yield
        finally:
            if not dvc:
                file.truncate(0)
            unlock(file)


def _open() -> IO[str]:
    try:
        PROJECT_LOCK.parent.mkdir(exist_ok=True)
        return os.fdopen(open_lock(PROJECT_LOCK), "r+")
    except OSError as error:
        raise StageError(
            f"{PROJECT_LOCK.resolve()} cannot be opened: {error.strerror}. If it belongs to another "
            "user, run in your own clone, or ask that user to share it with a group: `chgrp -R GROUP .runs`, "
            "`chmod -R g+rwX .runs`, and `find .runs -type d -exec chmod g+s {} +`"
        ) from error


def _acquire(file: IO[str], timeout_seconds: float) -> None:
    began = time.monotonic()
    while holder := _try_to_acquire(file):
        timeout = max(timeout_seconds, EXIT_WAIT_SECONDS if holder.is_transient() else 0.0)
        if time.monotonic() - began >= timeout:
            raise StageError(
                f"this project is in use by pid {holder.pid}{holder.host and f' on {holder.host}'} "
                f"(it holds {PROJECT_LOCK.resolve()}). Wait until it has finished, or stop it"
            )
        time.sleep(0.1)


def _try_to_acquire(file: IO[str]) -> _Holder | None:
    """Lock *file* and return None, or return the process that holds the lock."""
    if not try_lock(file):
        return _Holder.read(file)
    dvc = _Holder.read(file).dvc
    if dvc is None or not _keeps_lock(dvc):
        return None
    unlock(file)
    return _Holder(str(dvc.pid), dvc.host)


def _keeps_lock(dvc: ProcessIdentity) -> bool:
    """Return whether DVC still runs or records stages in process *dvc*, and did not start this process."""
    if dvc.host != socket.gethostname() or dvc.has_ended() or not is_alive(dvc.pid):
        return False
    return dvc.pid not in (os.getpid(), *processes.ancestors()) and _is_reproducing(dvc.pid)


def _is_reproducing(dvc: int) -> bool:
    """Return whether DVC runs or records stages of this project in process *dvc*.

    The process may continue after that, as a notebook does. DVC lists the outputs of a stage that runs in its
    rwlock, holds its own lock otherwise, and records the pid of `dvc exp run` until it has committed.
    """
    temporary = find_above(TEMPORARY)
    if find_dvc([dvc]) or _read_pid(temporary / EXPERIMENT) == dvc:
        return True
    with suppress(OSError), try_dvc_lock(temporary / "lock") as is_free:
        if not is_free and _read_pid(temporary / "lock") == dvc:
            return True
        return find_dvc([dvc]) is not None  # again, because no stage starts or ends while the lock is held
    return False


def _read_pid(path: Path) -> int | None:
    """Return the number in the file *path* of DVC that identifies a process; None without one."""
    with suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
        content = read_json_value(path)
        return int(content["pid"] if isinstance(content, dict) else content)
    return None
