"""The heartbeat of a run: a small file with its progress, which other processes read."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from stages.contracts.events import NoRenderer, Progress
from stages.contracts.history import History
from stages.runs.layout import HEARTBEAT_FILE
from stages.runs.manifest import LogLedger
from stages.runs.store import RunStore, read_json
from stages.system.files import open_part
from stages.system.processes import ProcessIdentity


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
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        with suppress(OSError), open_part(self._path) as file:
            file.write(f"{json.dumps(content)}\n".encode())


def heartbeat_of(store: RunStore) -> HeartbeatRenderer:
    """Return the heartbeat of a run in *store*, which also records the logs of each finished epoch there."""
    return HeartbeatRenderer(store.path, check=store.check_exists, epoch_ended=LogLedger(store.path).add)


def read_beat(store_path: Path) -> Beat | None:
    """Return the last heartbeat in the store *store_path*, or None."""
    with suppress(KeyError, TypeError, ValueError):
        content = read_json(store_path / HEARTBEAT_FILE) or {}
        owner = ProcessIdentity(*(content[name] for name in ("pid", "host", "boot", "started")))
        numbers = {name: int(content[name]) for name in ("epoch", "epochs", "step", "steps")}
        when = datetime.fromisoformat(content["time"])
        return Beat(owner, split=str(content["split"]), time=when, **numbers)
    return None
