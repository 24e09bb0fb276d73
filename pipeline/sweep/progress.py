"""The progress of a sweep: that of its points, their outcomes, and the time that the others take.

The progress of points in training is read from their run stores on this host; they write no file for it. The
lock of a run store has the process that trains in it, and that process works in the copy of its point. A
process of another host has no working directory here, so that its point has no progress.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pipeline.comparison.collection import direction_of
from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary
from pipeline.sweep.job import Job
from pipeline.sweep.stopping import find_metric
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.contracts.printing import print_line
from stages.contracts.text import format_duration
from stages.loggers.log_files import read_epoch
from stages.renderers.remaining_time import compute_run_share
from stages.runs.heartbeat import Beat, read_beat
from stages.runs.layout import list_named_locks, lock_of
from stages.system.file_lock import lock_holder
from stages.system.processes import ProcessIdentity, working_directory


@dataclass(frozen=True)
class PointProgress:
    """The progress of a point that trains."""

    epoch: int
    """Counts from 1; 0 before the first."""
    epochs: int
    share: float
    """The finished share of the epochs, from 0 to 1."""
    gained: float
    """The part of `share` that this sweep has trained: less than `share` after a resume."""
    seconds_left: float | None
    """None until the share has grown, and after the last epoch."""
    value: float | None
    """The metric in the last finished epoch that has a value."""


@dataclass
class _Training:
    """A process that trains, from its first heartbeat on."""

    store: Path
    first: Beat
    read_epochs: int = 0
    """The last epoch whose logs were read."""
    value: float | None = None


@dataclass
class ProgressReader:
    """A reader of the progress of points, which reads the logs of an epoch once."""

    runs_root: Path
    """The folder of the run stores."""
    requested: str | None
    """The metric in ``--metric``; None is the default."""
    metric: str | None = None
    """The ``split/metric`` whose values are read; None until an epoch of a point has values."""
    _trainings: dict[Path, _Training] = field(default_factory=dict)
    _last: dict[Path, PointProgress] = field(default_factory=dict)

    def read(self, copies: Iterable[Path], now: datetime) -> dict[Path, PointProgress]:
        """Return the progress of the points that work in *copies* at the time *now*, by their copy.

        A point that has trained keeps its last progress.
        """
        wanted, stores = set(copies), dict[Path, Path]()
        with suppress(OSError):  # a store was removed
            stores = self._find_stores(wanted)
        for copy, store in stores.items():
            with suppress(StageError, OSError, ValueError):  # the point has ended, or a file is corrupt
                if progress := self._read_point(copy, store, now):
                    self._last[copy] = progress
        return {copy: progress for copy, progress in self._last.items() if copy in wanted}

    def _find_stores(self, copies: set[Path]) -> dict[Path, Path]:
        """Return copy to run store, of the stores whose lock a process in one of *copies* holds."""
        running, host = {}, ProcessIdentity.of_this_process().host
        for lock in list_named_locks(self.runs_root):
            holder = lock_holder(lock)
            folder = working_directory(holder.pid) if holder and holder.host == host else None
            for copy in copies.intersection([folder, *folder.parents] if folder else []):
                running[copy] = lock.with_suffix("")
        return running

    def _read_point(self, copy: Path, store: Path, now: datetime) -> PointProgress | None:
        beat = read_beat(store)
        if beat is None or beat.owner != lock_holder(lock_of(store)):
            return None  # the heartbeat is of an earlier process
        training = self._trainings.get(copy)
        if training is None or training.first.owner != beat.owner:
            training = self._trainings[copy] = _Training(store, beat)
        self._read_value(training, beat.epoch - 1)
        share, first = compute_share(beat), compute_share(training.first)
        seconds_left = estimate_seconds_left(training.first, beat, now)
        return PointProgress(beat.epoch, beat.epochs, share, share - first, seconds_left, training.value)

    def _read_value(self, training: _Training, finished: int) -> None:
        """Read the value of the last of the *finished* epochs that has one, but none of them twice."""
        newer = range(finished, training.read_epochs, -1)
        training.read_epochs = max(finished, training.read_epochs)
        for epoch in newer:
            values = self._read_epoch(training.store, epoch)
            self.metric = self.metric or choose_metric(values, self.requested)
            if self.metric in values:
                training.value = values[self.metric]
                break

    def _read_epoch(self, store: Path, epoch: int) -> dict[str, float]:
        splits = [split for split in Split if not self.metric or self.metric.startswith(f"{split}/")]
        return {
            f"{split}/{metric}": value
            for split in splits
            for metric, value in read_epoch(store, split, epoch).items()
        }


def choose_metric(values: Mapping[str, float], requested: str | None) -> str | None:
    """Return the ``split/metric`` of *values* that the table of the sweep shows; None without one."""
    curves = {}
    for name, value in values.items():
        split, _, metric = name.partition("/")
        curves[name] = MetricCurve(split, metric, {1: value}, direction_of(metric))
    with suppress(ParamsError):
        return find_metric(Comparison((RunSummary("", None, metrics=curves),)), requested)
    return None


def compute_share(beat: Beat) -> float:
    """Return the finished share of all epochs, from 0 to 1. Validation does not count."""
    split = Split(beat.split)
    return compute_run_share(
        Progress(beat.epochs, epoch=beat.epoch, split=split, batch=beat.step, batches=beat.steps)
    )


def estimate_seconds_left(first: Beat, last: Beat, now: datetime) -> float | None:
    """Return the time after *now* that the rest of the epochs takes, at the speed from *first* to *last*.

    None if the share has not grown, or if all epochs have been trained.
    """
    share = compute_share(last)
    gained = share - compute_share(first)
    if gained <= 0 or share >= 1:
        return None
    remaining = (last.time - first.time).total_seconds() * (1 - share) / gained
    return max(0.0, remaining - (now - last.time).total_seconds())


@dataclass
class SweepProgress:
    """The outcomes of the points, printed as they finish."""

    total: int
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    before: int = 0
    """Points that had finished before the first one ran."""
    began: float = field(default_factory=time.monotonic)

    def report(self, job: Job, error: Exception | None) -> None:
        """Record that *job* finished, with *error* or with an experiment."""
        if error is None:
            self.done.append(job.name)
            self._print(job.name, f"done{self.format_time_left()}")
        else:
            reason = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self.add_failed(job.name, reason)

    def add_done(self, name: str, outcome: str) -> None:
        """Record that the point *name* has an experiment, and print *outcome*."""
        self.done.append(name)
        self._print(name, outcome)

    def add_failed(self, name: str, reason: str) -> None:
        """Record that the point *name* has no experiment, and print that."""
        self.failed[name] = reason
        self._print(name, "failed")

    def start(self) -> None:
        """Record that the points which are neither done nor failed run from now on."""
        self.before, self.began = self.count_finished(), time.monotonic()

    def count_finished(self) -> int:
        """Return the number of points that are done or have failed."""
        return len(self.done) + len(self.failed)

    def format_time_left(self, running: Iterable[PointProgress] = ()) -> str:
        """Return the time left, as in ``, about 2 min 5 s left``; empty if it is unknown, or none is left.

        The other points take as long as those that have run, and as the trained part of those in *running*.
        """
        shares = [(point.share, point.gained) for point in running]
        finished = self.count_finished()
        trained = finished - self.before + sum(gained for _, gained in shares)
        remaining = self.total - finished - sum(share for share, _ in shares)
        if trained <= 0 or remaining <= 0:
            return ""
        return f", about {format_duration((time.monotonic() - self.began) * remaining / trained)} left"

    def _print(self, name: str, outcome: str) -> None:
        # above the live table, if any
        print_line(f"[{self.count_finished()}/{self.total}] {name}: {outcome}")
