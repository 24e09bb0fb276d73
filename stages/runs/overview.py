"""Overview of the run stores: the heartbeat, the state, the progress and the duration of each run.

The heartbeat is a small file with the progress of a run, which other processes read.

The durations of finished runs are in ``durations/<md5 of metrics.json>-<key>.json`` next to the stores: a few
bytes for each run, which stay when a store is pruned, restarted or trained further.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from stages.contracts.events import NoRenderer, Progress
from stages.contracts.history import History
from stages.contracts.text import to_json
from stages.runs.file_names import CHECKPOINT_FOLDER, list_epochs
from stages.runs.key import KEY_LENGTH
from stages.runs.layout import DURATIONS_FOLDER, FINISHED_FILE, HEARTBEAT_FILE, KEY_FILE, lock_of, stores
from stages.runs.manifest import LogLedger, read_finished
from stages.runs.store import RunStore
from stages.system.file_lock import is_locked, lock_holder
from stages.system.files import md5, open_part, read_json, read_modification_time, write_text
from stages.system.processes import ProcessIdentity

STALLED_SECONDS = 60.0
"""Time without a heartbeat after which a running run may hang."""


@dataclass(frozen=True)
class Beat:
    """The progress of a run at its last heartbeat."""

    owner: ProcessIdentity
    epoch: int
    """Counts from 1; 0 before the first."""
    epochs: int
    split: str
    step: int
    """Finished batches of this epoch and split."""
    steps: int
    time: datetime
    first_epoch: int
    """The first epoch of the process: after a resume, the epoch after the checkpoint."""


class HeartbeatRenderer(NoRenderer):
    """Writes ``heartbeat.json`` at the start, after each epoch, at the end, and every *interval_seconds*.

    If the file cannot be written, the run continues without it. It is not synced, because it has no use after
    a power failure. *check* is called before each write, and ends the run if it raises; *epoch_ended* is
    called with the number of each finished epoch.
    """

    def __init__(
        self,
        store_path: Path,
        interval_seconds: float = 2.0,
        *,
        check: Callable[[], None] = lambda: None,
        epoch_ended: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._path = store_path / HEARTBEAT_FILE
        self._interval = interval_seconds
        self._check = check
        self._epoch_ended = epoch_ended
        self._due = 0.0
        self._progress: Progress | None = None

    def start(self, progress: Progress) -> None:
        """Write the first heartbeat."""
        self._progress, self._due = progress, 0.0
        self.step(progress)

    def step(self, progress: Progress) -> None:
        """Write a heartbeat if the interval has passed."""
        if time.monotonic() >= self._due:
            self._check()
            self._beat(progress)

    def epoch_end(self, progress: Progress, history: History) -> None:  # noqa: ARG002  the protocol's
        """Write a heartbeat, and report the finished epoch."""
        self._check()
        self._epoch_ended(progress.epoch)
        self._beat(progress)

    def close(self) -> None:
        """Write the last heartbeat, if `start` was called."""
        if self._progress:
            self._beat(self._progress)

    def _beat(self, progress: Progress) -> None:
        self._due = time.monotonic() + self._interval
        content = {
            **asdict(ProcessIdentity.of_this_process()),
            "epoch": progress.epoch,
            "epochs": progress.epochs,
            "split": progress.split.value,
            "step": progress.batch,
            "steps": progress.batches,
            "first_epoch": progress.first_epoch,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        with suppress(OSError), open_part(self._path) as file:
            file.write(f"{json.dumps(content)}\n".encode())


def heartbeat_of(store: RunStore) -> HeartbeatRenderer:
    """Return the heartbeat of a run in *store*, which also records the logs of each finished epoch there."""
    return HeartbeatRenderer(store.path, check=store.check_exists, epoch_ended=LogLedger(store.path).add)


def read_beat(store_path: Path) -> Beat | None:
    """Return the last heartbeat in the store *store_path*, or None."""
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        content = read_json(store_path / HEARTBEAT_FILE) or {}
        owner = ProcessIdentity(*(content[name] for name in ("pid", "host", "boot", "started")))
        numbers = {name: int(content[name]) for name in ("epoch", "epochs", "step", "steps", "first_epoch")}
        when = datetime.fromisoformat(content["time"])
        return Beat(owner, split=str(content["split"]), time=when, **numbers)
    return None


class State(StrEnum):
    """The state of a run store."""

    RUNNING = "running"
    """A process holds the lock of the store; the age of its heartbeat has no effect."""
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    """The run is not finished, and its last process released the lock."""
    KILLED = "killed"
    """The run is not finished, and its last process was killed."""


def state_of(store_path: Path) -> State:
    """Return the current state of the store *store_path*."""
    lock = lock_of(store_path)
    if is_locked(lock):
        return State.RUNNING
    if (store_path / FINISHED_FILE).exists():
        return State.FINISHED
    return State.KILLED if lock_holder(lock) else State.INTERRUPTED


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
        finish = read_finished(self.path)
        return finish.facts if finish else None

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
        return max(
            read_modification_time(self.path / name)
            for name in (KEY_FILE, HEARTBEAT_FILE, FINISHED_FILE, ".")
        )

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
    owner = lock_holder(lock_of(store_path)) if state in (State.RUNNING, State.KILLED) else None
    return Run(store_path, state, owner, read_beat(store_path))


def runs(root: Path) -> list[Run]:
    """Return all runs below *root*, the most recently active one first."""
    return sorted(map(read_run, stores(root)), key=lambda run: (-run.last_change, run.key))


def _size(path: Path) -> int:
    """Return the size of a file; 0 if a running run has just removed it."""
    with suppress(FileNotFoundError):
        return 0 if path.is_dir() else path.stat().st_size
    return 0


_RECORD = re.compile(rf"([0-9a-f]{{32}})-([0-9a-f]{{{KEY_LENGTH}}})\.json")
_STARTED = ("Starting training", "Resuming ")
"""Beginnings of the first log line of a process: the time before it is a pause."""


def read_durations(root: Path) -> dict[str, dict[str, float]]:
    """Return md5 of ``metrics.json`` to run key to seconds, from the records below *root*."""
    durations: dict[str, dict[str, float]] = {}
    for path in (root / DURATIONS_FOLDER).glob("*.json"):
        name, content = _RECORD.fullmatch(path.name), read_json(path)
        if name and content and isinstance(content.get("seconds"), float):
            durations.setdefault(name[1], {})[name[2]] = content["seconds"]
    return durations


def record_duration(store_path: Path) -> None:
    """Write the record of the finished run in *store_path*, unless its log has no times.

    No error is raised if it cannot be written, for example on a full disk: only `learner compare` reads it.
    """
    with suppress(OSError):
        log = (store_path / "experiment.log").read_text(encoding="utf-8", errors="replace")
        metrics, seconds = md5(store_path / "metrics.json"), working_seconds(log.splitlines())
        if metrics and seconds is not None:
            path = store_path.parent / DURATIONS_FOLDER / f"{metrics}-{store_path.name}.json"
            write_text(path, to_json({"seconds": seconds}) + "\n")


def working_seconds(lines: Iterable[str]) -> float | None:
    """Return the time from the first of the *lines* of an experiment.log to the last, without pauses."""
    total, before = 0.0, None
    for line in lines:
        stamp, _, rest = line.partition(" ")
        try:
            now = datetime.fromisoformat(stamp)
        except ValueError:
            continue  # a line of a traceback
        message = rest.partition(": ")[2]
        if before is not None and not message.startswith(_STARTED):
            total += max(0.0, (now - before).total_seconds())
        before = now
    return total if before is not None and total > 0 else None
