"""What the loop tells those who watch it. Watchers change nothing: a run has the same weights with none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from stages.contracts.history import History, Split
from stages.contracts.interrupter import Interrupter


@dataclass(frozen=True, slots=True)
class Step:
    """One step, for metrics that measure the run itself and not the model's output."""

    item: Any
    """What the model's step returned."""
    split: Split
    epoch: int
    """From 1."""
    iteration: int
    """The batch of this epoch and split, from 1."""
    learning_rate: float
    """Of this step; 0 on the valid split."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a metric is shown."""

    unit: str | None = None
    decimals: int = 2
    numeric: bool = True
    """Whether it has a curve and a row in the summary."""


@dataclass
class Progress:
    """Where the run is. One object lives through the whole run, so a step costs no allocation."""

    epochs: int
    """How many there will be."""
    first_epoch: int = 1
    """Where this run began: after a resume, the epoch after the checkpoint's."""
    epoch: int = 0
    """From 1; 0 before the first."""
    split: Split = Split.TRAIN
    batch: int = 0
    """How many batches of this epoch and split are done."""
    batches: int = 0
    """How many there are in this epoch and split."""
    items: int = 0
    """How many samples of this epoch and split are done."""
    running: Callable[[], Mapping[str, float]] = dict
    """Asked for, gives each metric's value over this epoch and split so far."""
    latest: Callable[[], Mapping[str, float]] = dict
    """Asked for, gives each metric's value on the last batch of this split."""
    shown: Mapping[str, Shown] = field(default_factory=dict)
    """Metric to how it is shown; text metrics first, then numeric ones, each in the order of registration."""
    interrupter: Interrupter = field(default_factory=Interrupter)
    """A renderer may ask the run to stop."""


class MetricLogger(Protocol):
    """Writes what was measured on one split. A user's own needs no more; it may be `Resumable` too."""

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Note what metric *name* was on one batch of *count* samples."""

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Note what *name* was over the whole epoch, where that is not the mean of its batches."""

    def flush(self) -> None:
        """Everything noted so far is on its way to disk when this returns."""

    def close(self) -> None:
        """The run is over, well or not."""


@runtime_checkable
class Resumable(Protocol):
    """What a `MetricLogger` may do besides, so that a run that was stopped logs no line twice.

    One that cannot is told of the steps after the resume, as if nothing had happened.
    """

    def position(self) -> dict[str, Any]:
        """How far it is, as text, numbers, lists and maps; everything noted so far is on disk then."""

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Go on in the middle of *epoch*, where `position` said *position*: all that came later goes.

        Raises `CheckpointError` where that cannot be.
        """

    def cut(self, epoch: int) -> None:
        """All that is noted of the epochs after *epoch* goes; called before the first that is run."""


@runtime_checkable
class Verifiable(Protocol):
    """An optional part of a `Resumable`: verifies its logs before a checkpoint is chosen."""

    def verify(self, position: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` if `resume` from *position* is impossible."""


class Renderer(Protocol):
    """Shows a run to a person."""

    def start(self, progress: Progress) -> None:
        """The run begins."""

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:
        """Metric *name* was *value* on one batch: a point of its curve. Comes in runs, some steps late."""

    def step(self, progress: Progress) -> None:
        """A batch is done; called for every one, so it must return at once most times."""

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Both splits of an epoch are done, and *history* has their values."""

    def close(self) -> None:
        """The run is over, well or not."""
