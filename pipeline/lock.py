"""One run in a project at a time: a lock file that a whole flow holds, and a stage that DVC started too."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.contracts.errors import StageError

PATH = Path(".runs/lock")


@contextmanager
def project_lock() -> Iterator[None]:
    """Hold the lock of the project in this folder; it goes with the process, however that ends.

    Raises `StageError` where another process has it.
    """
    PATH.parent.mkdir(exist_ok=True)
    with PATH.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StageError(
                f"this project is in use by pid {file.read().strip() or 'unknown'} "
                f"(it holds {PATH.resolve()}): wait for it, or end it"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)
