"""What is in the run stores, for people: which runs are there, which are at work, how far each one is."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from stages.checkpoints.file_names import CHECKPOINT_FOLDER, list_epochs
from stages.contracts.file_lock import is_locked, lock_holder
from stages.contracts.processes import ProcessIdentity
from stages.runs.heartbeat import Beat, read_beat
from stages.runs.layout import FINISHED_FILE, HEARTBEAT_FILE, KEY_FILE, lock_of, stores
from stages.runs.manifest import read_finished
from stages.runs.store import read_json

STALLED_SECONDS = 60.0
"""A run at work that has not said anything for so long may hang."""


class State(StrEnum):
    """What a run store is in."""

    RUNNING = "running"
    """Somebody holds its lock; the clock decides nothing."""
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    """It is not done, and who worked in it left in good order."""
    DEAD = "dead"
    """It is not done, and who worked in it was killed."""


def state_of(store_path: Path) -> State:
    """What the store *store_path* is in now."""
    lock = lock_of(store_path)
    if is_locked(lock):
        return State.RUNNING
    if (store_path / FINISHED_FILE).exists():
        return State.FINISHED
    return State.DEAD if lock_holder(lock) else State.INTERRUPTED


@dataclass(frozen=True)
class Run:
    """One store, as it was when it was looked at."""

    path: Path
    state: State
    owner: ProcessIdentity | None
    """Who works in it, or died in it."""
    beat: Beat | None

    @property
    def key(self) -> str:
        """The name of its directory."""
        return self.path.name

    @cached_property
    def entries(self) -> dict[str, Any]:
        """What the key was made of; empty where that cannot be read."""
        return read_json(self.path / KEY_FILE) or {}

    @cached_property
    def finished(self) -> dict[str, Any] | None:
        """The facts that a finished run recorded; None if it is not finished, or if they are corrupt."""
        found = read_finished(read_json(self.path / FINISHED_FILE))
        return found.facts if found else None

    @cached_property
    def epochs(self) -> int:
        """The last epoch that has a checkpoint; 0 where none has."""
        return max(list_epochs(self.path / CHECKPOINT_FOLDER), default=0)

    @cached_property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(_size(path) for path in self.path.rglob("*"))

    @cached_property
    def changed(self) -> float:
        """When it last showed life, in seconds as `time.time` counts."""
        return max(_time(self.path / name) for name in (KEY_FILE, HEARTBEAT_FILE, FINISHED_FILE, "."))

    @property
    def started(self) -> bool:
        """Whether the last beat is of the process at work, and not of one before it."""
        return self.beat is not None and self.beat.owner == self.owner

    @property
    def stalled(self) -> bool:
        """Whether it is at work, and has not said anything for a minute."""
        return self.state is State.RUNNING and time.time() - self.changed > STALLED_SECONDS

    @property
    def place(self) -> str:
        """How far it said it was: ``epoch 3 step 120``; empty where it said nothing yet."""
        if self.beat is None:
            return ""
        split = "" if self.beat.split == "train" else f" {self.beat.split}"
        return f"epoch {self.beat.epoch}{split} step {self.beat.step}"

    @property
    def time(self) -> datetime:
        """When it last showed life, in local time."""
        return datetime.fromtimestamp(self.changed).astimezone()


def look_at(store_path: Path) -> Run:
    """The store *store_path* as it is now."""
    state = state_of(store_path)
    owner = lock_holder(lock_of(store_path)) if state in (State.RUNNING, State.DEAD) else None
    return Run(store_path, state, owner, read_beat(store_path))


def runs(root: Path) -> list[Run]:
    """Every run below *root*, the one that showed life last first."""
    return sorted(map(look_at, stores(root)), key=lambda run: (-run.changed, run.key))


def _size(path: Path) -> int:
    """0 for what has just been removed: a run may be at work there."""
    with suppress(FileNotFoundError):
        return 0 if path.is_dir() else path.stat().st_size
    return 0


def _time(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
