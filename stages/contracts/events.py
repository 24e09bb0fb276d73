"""What the loop tells those who watch it. Watchers change nothing: a run has the same weights with none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stages.contracts.history import History, Split


@dataclass
class Progress:
    """Where the run is. One object lives through the whole run, so a step costs no allocation."""

    epochs: int
    """How many there will be."""
    epoch: int = 0
    """From 1; 0 before the first."""
    split: Split = Split.TRAIN
    batch: int = 0
    """How many batches of this epoch and split are done."""
    batches: int = 0
    """How many there are in this epoch and split."""
    running: Callable[[], Mapping[str, float]] = dict
    """Asked for, gives each metric's value over this epoch and split so far."""
    units: Mapping[str, str | None] = field(default_factory=dict)
    """Metric to its unit."""


class MetricLogger(Protocol):
    """Writes what was measured on one split."""

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Note what metric *name* was on one batch of *count* samples."""

    def flush(self) -> None:
        """Everything noted so far is on its way to disk when this returns."""

    def close(self) -> None:
        """The run is over, well or not."""


class Renderer(Protocol):
    """Shows a run to a person."""

    def start(self, progress: Progress) -> None:
        """The run begins."""

    def step(self, progress: Progress) -> None:
        """A batch is done; called for every one, so it must return at once most times."""

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Both splits of an epoch are done, and *history* has their values."""

    def close(self) -> None:
        """The run is over, well or not."""
