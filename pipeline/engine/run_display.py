"""The display of a run that other processes train, from the heartbeat and the logs in its store."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.contracts.errors import DataError
from stages.contracts.events import Progress, Renderer
from stages.contracts.history import History, Split, Value
from stages.loggers.log_files import read_epoch
from stages.runs.heartbeat import read_beat
from stages.system.processes import ProcessIdentity

INTERVAL_SECONDS = 1.0
"""Time between two readings of the heartbeat."""


@contextmanager
def display_run(
    store: Path, renderer: Renderer, progress: Progress, interval_seconds: float = INTERVAL_SECONDS
) -> Iterator[None]:
    """Show the run that other processes train in *store* with *renderer*, from a thread of its own.

    *progress* is updated and passed to the renderer, without telemetry and without values of an epoch in
    progress. If no process trains in the block, the renderer is not called.
    """
    display = _Display(store, renderer, progress)
    has_ended = threading.Event()

    def follow() -> None:
        while not has_ended.wait(interval_seconds):
            display.update()

    thread = threading.Thread(target=follow, name="display", daemon=True)
    thread.start()
    is_complete = False
    try:
        yield
        is_complete = True
    finally:
        has_ended.set()
        thread.join()
        display.close(is_complete=is_complete)


class _Display:
    """The part of a run that *renderer* has shown."""

    def __init__(self, store: Path, renderer: Renderer, progress: Progress) -> None:
        self._store, self._renderer, self._progress = store, renderer, progress
        self._history = History()
        self._shown_epochs: int | None = None
        """The last epoch whose end was shown; None before the first heartbeat."""
        self._earlier: ProcessIdentity | None = None
        """The process of an earlier run, whose heartbeat is in the store."""
        if beat := read_beat(store):
            self._earlier = beat.owner

    def update(self) -> None:
        """Show the last heartbeat, and the end of each epoch before its epoch."""
        beat, progress = read_beat(self._store), self._progress
        if beat is None or beat.owner == self._earlier:
            return
        if self._shown_epochs is None:
            self._shown_epochs = max(0, beat.epoch - 1)
            progress.first_epoch = self._shown_epochs + 1
            self._renderer.start(progress)
        self._end_epochs(beat.epoch - 1)
        progress.epoch, progress.split = beat.epoch, Split(beat.split)
        progress.batch, progress.batches = beat.step, beat.steps
        self._renderer.step(progress)

    def close(self, *, is_complete: bool) -> None:
        """Show the last heartbeat, and the end of its epoch if the run *is_complete*; close the renderer."""
        self.update()
        if self._shown_epochs is None:
            return
        if is_complete:
            self._end_epochs(self._progress.epoch)
        self._renderer.close()

    def _end_epochs(self, last: int) -> None:
        """Show the end of each epoch up to *last* that was not shown."""
        for epoch in range((self._shown_epochs or 0) + 1, last + 1):
            self._read(epoch)
            self._progress.epoch = self._shown_epochs = epoch
            self._renderer.epoch_end(self._progress, self._history)

    def _read(self, epoch: int) -> None:
        """Add the values of *epoch* to the history."""
        for split in Split:
            with suppress(DataError, OSError):  # the store was removed, or a log is corrupt
                for metric, value in read_epoch(self._store, split, epoch).items():
                    self._history.add(Value(epoch, split, metric, value))
