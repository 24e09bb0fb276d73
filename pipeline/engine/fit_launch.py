"""The stage fit on several devices: the launch of one rank for each, and the display of the run.

Other processes train, so the display reads the heartbeat and the logs in the run store.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.engine.rank_launcher import run_ranks
from stages import fit, metrics, runs
from stages.contracts.errors import DataError
from stages.contracts.events import Progress, Renderer, Shown
from stages.contracts.history import History, Split, Value
from stages.contracts.interrupter import Interrupter
from stages.loggers.log_reader import read_epoch
from stages.params.fit_context import FitPaths
from stages.params.fit_params import FitConfig
from stages.runs.heartbeat import read_beat
from stages.runs.layout import ranks_of
from stages.system.processes import ProcessIdentity, module_command

INTERVAL_SECONDS = 1.0
"""Time between two readings of the heartbeat."""


def needs_launch(config: FitConfig) -> bool:
    """Return whether the ranks of *config* are not started yet, by this project or by torchrun."""
    return "RANK" not in os.environ and len(config.list_devices()) > 1


def launch_fit(
    config: FitConfig,
    paths: FitPaths,
    code: Mapping[str, Any],
    interrupter: Interrupter,
    *,
    renderer: Renderer | None = None,
) -> None:
    """Run the stage fit on one rank for each device of *config*, whose logs are beside the run store.

    Rank 0 prints its progress, and *renderer* shows it in this process too. Raises `StageError` with the
    error of the rank that failed first, and `RunInterruptedError` if the ranks were stopped and have saved.
    """
    store = paths.runs / runs.run_key(fit.key_entries(config, paths, code))
    devices, folder = config.list_devices(), ranks_of(store)
    with ExitStack() as stack:
        if renderer is not None:
            progress = Progress(config.num_epochs, shown=_list_shown(config), interrupter=interrupter)
            stack.enter_context(display_run(store, renderer, progress))
        run_ranks(
            module_command("pipeline", "stage", "fit"),
            devices,
            folder,
            interrupter,
            max_restarts=config.max_restarts,
        )


def _list_shown(config: FitConfig) -> dict[str, Shown]:
    """Return the display options of the metrics of *config*, by name."""
    built = [metrics.build_metric(use) for use in config.metrics]
    return {metric.name: Shown(metric.unit, getattr(metric, "decimals", 2)) for metric in built}


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
