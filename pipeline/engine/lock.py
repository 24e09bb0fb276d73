"""One run in a project at a time: a lock file that a whole flow holds, and a stage that DVC started too."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from pipeline.engine.process_tree import is_alive
from stages.contracts.errors import StageError
from stages.runs.layout import PROJECT_LOCK

EXIT_WAIT_SECONDS = 60


@dataclass(frozen=True)
class _Holder:
    """Who has the lock, as the file says."""

    pid: str = "unknown"
    host: str = ""
    ancestors: tuple[int, ...] = ()

    @classmethod
    def read(cls, file: IO[str]) -> "_Holder":
        file.seek(0)
        pid, host, *ancestors = [*file.read().split(), "", ""]
        return cls(pid or "unknown", host, tuple(map(int, filter(None, ancestors))))

    def is_exiting(self) -> bool:
        """Whether it is dead, so that only a worker of it is left, or DVC, which started it, is."""
        if self.host != socket.gethostname():
            return False
        return not all(map(is_alive, (int(self.pid), *self.ancestors)))


@contextmanager
def project_lock(ancestors: Sequence[int] = (), *, timeout_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of the project in this folder; it goes with the process, however that ends.

    *ancestors* are the processes without which this one would not go on. Raises `StageError` where
    another process has the lock for longer than *timeout_seconds*; one whose own ancestors are gone is given
    time to leave.
    """
    with _open() as file:
        _acquire(file, timeout_seconds)
        os.register_at_fork(after_in_child=file.close)  # or a loader's worker would hold it too
        file.truncate(0)
        file.write(" ".join(map(str, (os.getpid(), socket.gethostname(), *ancestors))))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)


def _open() -> IO[str]:
    try:
        PROJECT_LOCK.parent.mkdir(exist_ok=True)
        return PROJECT_LOCK.open("a+")
    except OSError as error:
        raise StageError(
            f"{PROJECT_LOCK.resolve()} cannot be opened: {error.strerror}. If it belongs to another "
            "user, run in a clone of your own, or have that user run `chmod -R a+rwX .runs`"
        ) from error


def _acquire(file: IO[str], timeout_seconds: float) -> None:
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _Holder.read(file)
            timeout = max(timeout_seconds, EXIT_WAIT_SECONDS if holder.is_exiting() else 0.0)
            if time.monotonic() - began >= timeout:
                raise StageError(
                    f"this project is in use by pid {holder.pid}{holder.host and f' on {holder.host}'} "
                    f"(it holds {PROJECT_LOCK.resolve()}): wait for it, or end it"
                ) from None
            time.sleep(0.1)
        else:
            return
