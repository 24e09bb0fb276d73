"""The project lock, which allows one run in a project at a time.

A flow holds it from its first stage to its last. A stage that DVC started in its own process holds it too.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from stages.contracts.errors import StageError
from stages.contracts.file_lock import try_lock, unlock
from stages.contracts.processes import is_alive
from stages.runs.layout import PROJECT_LOCK

EXIT_WAIT_SECONDS = 60


@dataclass(frozen=True)
class _Holder:
    """The process that holds the lock, according to the lock file."""

    pid: str = "unknown"
    host: str = ""
    ancestors: tuple[int, ...] = ()

    @classmethod
    def read(cls, file: IO[str]) -> "_Holder":
        file.seek(0)
        pid, host, *ancestors = [*file.read().split(), "", ""]
        return cls(pid or "unknown", host, tuple(map(int, filter(None, ancestors))))

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
def project_lock(ancestors: Sequence[int] = (), *, timeout_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of the project in the current folder; it is released when the process ends in any way.

    *ancestors* are the processes with which this one terminates. Raises `StageError` if another process holds
    the lock for longer than *timeout_seconds*, or `EXIT_WAIT_SECONDS` if it is about to be released.
    """
    with _open() as file:
        _acquire(file, timeout_seconds)
        os.register_at_fork(
            after_in_child=file.close
        )  # otherwise a worker of a loader would hold the lock too
        file.truncate(0)
        file.write(" ".join(map(str, (os.getpid(), socket.gethostname(), *ancestors))))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            unlock(file)


def _open() -> IO[str]:
    try:
        PROJECT_LOCK.parent.mkdir(exist_ok=True)
        return PROJECT_LOCK.open("a+")
    except OSError as error:
        raise StageError(
            f"{PROJECT_LOCK.resolve()} cannot be opened: {error.strerror}. If it belongs to another "
            "user, run in your own clone, or ask that user to run `chmod -R a+rwX .runs`"
        ) from error


def _acquire(file: IO[str], timeout_seconds: float) -> None:
    began = time.monotonic()
    while True:
        if try_lock(file):
            return
        holder = _Holder.read(file)
        timeout = max(timeout_seconds, EXIT_WAIT_SECONDS if holder.is_transient() else 0.0)
        if time.monotonic() - began >= timeout:
            raise StageError(
                f"this project is in use by pid {holder.pid}{holder.host and f' on {holder.host}'} "
                f"(it holds {PROJECT_LOCK.resolve()}). Wait until it has finished, or stop it"
            )
        time.sleep(0.1)
