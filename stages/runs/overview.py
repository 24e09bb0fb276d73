"""Overview of the run stores: the state and the progress of each run."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from stages.checkpoints.file_names import CHECKPOINT_FOLDER, list_epochs
from stages.runs.heartbeat import Beat, read_beat
from stages.runs.layout import FINISHED_FILE, HEARTBEAT_FILE, KEY_FILE, lock_of, stores
from stages.runs.manifest import read_finished
from stages.runs.store import read_json
from stages.system.file_lock import is_locked, lock_holder
from stages.system.processes import ProcessIdentity

STALLED_SECONDS = 60.0
"""Time without a heartbeat after which a running run may hang."""


class State(StrEnum):
    """The state of a run store."""

    RUNNING = "running"
    """A process holds the lock of the store; the age of its heartbeat has no effect."""
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    """The run is not finished, and its last process released the lock."""
    DEAD = "dead"
    """The run is not finished, and its last process was killed."""


def state_of(store_path: Path) -> State:
    """Return the current state of the store *store_path*."""
    lock = lock_of(store_path)
    if is_locked(lock):
        return State.RUNNING
    if (store_path / FINISHED_FILE).exists():
        return State.FINISHED
    return State.DEAD if lock_holder(lock) else State.INTERRUPTED


@dataclass(frozen=True)
class Run:
    """The state of a run store when it was read."""

    path: Path
    state: State
    owner: ProcessIdentity | None
    """The process that works in the store, or that was killed while it did."""
    beat: Beat | None

    @property
    def key(self) -> str:
        """The key of the run, the name of its directory."""
        return self.path.name

    @cached_property
    def entries(self) -> dict[str, Any]:
        """The entries of the key; empty if they cannot be read."""
        return read_json(self.path / KEY_FILE) or {}

    @cached_property
    def finished(self) -> dict[str, Any] | None:
        """The facts that a finished run recorded; None if it is not finished, or if they are corrupt."""
        found = read_finished(read_json(self.path / FINISHED_FILE))
        return found.facts if found else None

    @cached_property
    def epochs(self) -> int:
        """The last epoch that has a checkpoint, or 0."""
        return max(list_epochs(self.path / CHECKPOINT_FOLDER), default=0)

    @cached_property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(_size(path) for path in self.path.rglob("*"))

    @cached_property
    def last_change(self) -> float:
        """The time of the last sign of progress, in seconds since the epoch."""
        return max(_time(self.path / name) for name in (KEY_FILE, HEARTBEAT_FILE, FINISHED_FILE, "."))

    @property
    def has_started(self) -> bool:
        """True if the last heartbeat is of the process that works in the store now, not of an earlier one."""
        return self.beat is not None and self.beat.owner == self.owner

    @property
    def is_stalled(self) -> bool:
        """True if the run is in progress and has written no heartbeat for `STALLED_SECONDS`."""
        return self.state is State.RUNNING and time.time() - self.last_change > STALLED_SECONDS

    @property
    def place(self) -> str:
        """The progress, such as ``epoch 3 step 120``; empty before the first heartbeat."""
        if self.beat is None:
            return ""
        split = "" if self.beat.split == "train" else f" {self.beat.split}"
        return f"epoch {self.beat.epoch}{split} step {self.beat.step}"

    @property
    def time(self) -> datetime:
        """The time of the last sign of progress, in local time."""
        return datetime.fromtimestamp(self.last_change).astimezone()


def read_run(store_path: Path) -> Run:
    """Read the store *store_path*."""
    state = state_of(store_path)
    owner = lock_holder(lock_of(store_path)) if state in (State.RUNNING, State.DEAD) else None
    return Run(store_path, state, owner, read_beat(store_path))


def runs(root: Path) -> list[Run]:
    """Return all runs below *root*, the most recently active one first."""
    return sorted(map(read_run, stores(root)), key=lambda run: (-run.last_change, run.key))


def _size(path: Path) -> int:
    """Return the size of a file; 0 if a running run has just removed it."""
    with suppress(FileNotFoundError):
        return 0 if path.is_dir() else path.stat().st_size
    return 0


def _time(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
