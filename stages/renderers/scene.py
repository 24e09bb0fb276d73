"""The content of a frame: metric values, the selection made with keys, the chart and the remaining time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from rich.text import Text

from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.renderers.terminal import Key


class View(StrEnum):
    """The points of a metric that the chart shows."""

    FULL = "Full history"
    RECENT = "Recent"
    EPOCHS = "Epochs"


VIEWS = tuple(View)


@dataclass(frozen=True)
class Selection:
    """The metric and view that were selected with keys."""

    metric: int = 0
    """The index of the metric among those with curves."""
    view: View = View.FULL
    is_quitting: bool = False
    """True while the quit dialog is open."""

    def apply(self, key: Key, metric_count: int) -> Self:
        """Return the selection after *key*, if *metric_count* metrics have curves."""
        match key:
            case Key.LEFT | Key.RIGHT:
                step = 1 if key is Key.RIGHT else -1
                return replace(self, metric=(self.metric + step) % max(metric_count, 1))
            case Key.UP | Key.DOWN:
                step = 1 if key is Key.DOWN else -1
                return replace(self, view=VIEWS[(VIEWS.index(self.view) + step) % len(VIEWS)])
            case Key.QUIT:
                return replace(self, is_quitting=True)
            case Key.STOP | Key.KILL | Key.CANCEL:
                return replace(self, is_quitting=False)
            case Key.SUSPEND:
                return self


@dataclass(frozen=True)
class MetricValue:
    """The two values of a metric on one split."""

    running: float
    """Over the processed part of the epoch."""
    latest: float | None
    """On the last batch; None if the metric has no value per batch."""


_Source = tuple[Split, Callable[[], Mapping[str, float]], Callable[[], Mapping[str, float]]]


class MetricValues:
    """The metric values of both splits, read only in `update`, because each read waits for an accelerator."""

    def __init__(self) -> None:
        self._source: _Source | None = None
        self._values: dict[Split, dict[str, MetricValue]] = {split: {} for split in Split}

    def update(self, progress: Progress) -> None:
        """Read the values of the current split, and the final values of a split that has ended meanwhile."""
        source = (progress.split, progress.running, progress.latest)
        if self._source is not None and source != self._source:
            self._read(self._source)
        self._source = source
        self._read(source)

    def get(self, split: Split, metric: str) -> MetricValue | None:
        """Return the last values of *metric* on *split*; None before its first batch."""
        return self._values[split].get(metric)

    def metric_names(self) -> list[str]:
        """Return the names of the metrics with values on either split."""
        return list(dict.fromkeys(name for values in self._values.values() for name in values))

    def _read(self, source: _Source) -> None:
        split, running, latest = source
        last = latest()
        values = {name: MetricValue(value, last.get(name)) for name, value in running().items()}
        self._values[split] = values or self._values[split]


@dataclass(frozen=True)
class Scene:
    """The content of one frame."""

    progress: Progress
    values: MetricValues
    selection: Selection
    metric_names: Sequence[str]
    """The metrics with curves."""
    chart: Text
    """The chart of the selected metric and view."""
    remaining: tuple[str, str]
    """The remaining times of the split and of the run."""
    has_keys: bool
    """True if the keyboard is read."""

    @property
    def metric(self) -> str | None:
        """The selected metric; None if no metric has a curve."""
        return (
            self.metric_names[self.selection.metric % len(self.metric_names)] if self.metric_names else None
        )


UNKNOWN_TIME = "---"
WARM_UP_ITERATIONS = 10
"""Training steps before the first estimate."""
UNITS = ((86400, "day"), (3600, "hour"), (60, "min"), (1, "sec"))


@dataclass(frozen=True)
class Reading:
    """The finished share, from 0 to 1, at a time in seconds of one monotonic clock."""

    time: float
    share: float


class RemainingTime:
    """An estimator of the remaining time, from the shares that were finished when it was first called.

    A run that resumes within an epoch has finished a part of it before, which took no time of this process.
    """

    def __init__(self) -> None:
        self._run: Reading | None = None
        """The first reading of the run."""
        self._split = Reading(0.0, 0.0)
        """The first reading of the current split."""
        self._current: tuple[int, Split] | None = None

    def estimate(self, progress: Progress, now: float) -> tuple[str, str]:
        """Return the remaining times of the current split and of the run as text.

        A split starts at the first call in it, so call this method several times per split.
        """
        split, run = Reading(now, compute_split_share(progress)), Reading(now, compute_run_share(progress))
        if self._current != (progress.epoch, progress.split):
            self._current, self._split = (progress.epoch, progress.split), split
        if self._run is None and progress.epoch >= progress.first_epoch:
            self._run = run
        return (
            format_remaining_time(self._split, split, progress.batch),
            format_remaining_time(self._run or run, run, count_run_iterations(progress)),
        )


def compute_split_share(progress: Progress) -> float:
    """Return the finished share of the current epoch and split, from 0 to 1."""
    return progress.batch / progress.batches if progress.batches else 0.0


def compute_run_share(progress: Progress) -> float:
    """Return the finished share of the training since this run started or resumed, from 0 to 1.

    Validation does not count.
    """
    epochs = progress.epochs - progress.first_epoch + 1
    if progress.epoch < progress.first_epoch or epochs < 1:
        return 0.0
    epoch_share = compute_split_share(progress) if progress.split is Split.TRAIN else 1.0
    return (progress.epoch - progress.first_epoch + epoch_share) / epochs


def count_run_iterations(progress: Progress) -> int:
    """Return a lower bound of the training steps since this run started, sufficient to end the warm-up."""
    epochs = progress.epoch - progress.first_epoch
    if progress.split is Split.TRAIN:
        return progress.batch + epochs * progress.batches
    return WARM_UP_ITERATIONS


def format_remaining_time(first: Reading, last: Reading, iterations: int) -> str:
    """Return the remaining time in its largest unit, such as ``3 mins``, or ``---`` during the warm-up.

    The warm-up ends 10 seconds after the *first* reading if there were `WARM_UP_ITERATIONS` *iterations*, at
    the latest after 30 seconds. The speed is that between both readings.
    """
    elapsed, gained = last.time - first.time, last.share - first.share
    is_warm = elapsed > 30 or (elapsed > 10 and iterations >= WARM_UP_ITERATIONS)
    if not is_warm or gained <= 0:
        return UNKNOWN_TIME
    return format_largest_unit(elapsed * (1 - last.share) / gained)


def format_largest_unit(seconds: float) -> str:
    """Return *seconds* in the largest unit, rounded down: ``45 secs``, ``1 min``, ``2 hours``, ``3 days``."""
    for size, name in UNITS:
        count = int(seconds // size)
        if count:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "0 secs"
