"""The numbers and samples that a step logs beside its output, on their way to the meter of the pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MAX_SAMPLES = 4
"""Limit of the samples of each name in one pass over a split."""


@dataclass(frozen=True)
class LoggedNumber:
    """A number of one batch, and its weight; None for the weight of the output."""

    name: str
    value: Any
    weight: Any


@dataclass(frozen=True)
class LoggedSample:
    """A sample: a text, or an image of uint8, (H, W) or (H, W, 3)."""

    name: str
    number: int
    """Counted from 1 in each pass."""
    content: "str | np.ndarray"


@dataclass
class StepLog:
    """What the steps of one pass log, until the meter takes it."""

    limit: int = MAX_SAMPLES
    entries: list[LoggedNumber | LoggedSample] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """The number of samples of each name so far."""
    is_used: bool = False
    """True if a step of the pass has logged anything."""

    def add_number(self, name: str, value: Any, weight: Any) -> None:
        """Add the *value* of a batch."""
        self.is_used = True
        self.entries.append(LoggedNumber(name, value, weight))

    def accepts(self, name: str) -> bool:
        """Return whether another sample *name* is within the limit."""
        self.is_used = True
        return self.counts.get(name, 0) < self.limit

    def add_sample(self, name: str, content: "str | np.ndarray") -> None:
        """Add a sample, if it is within the limit."""
        if self.accepts(name):
            self.counts[name] = self.counts.get(name, 0) + 1
            self.entries.append(LoggedSample(name, self.counts[name], content))

    def discard(self) -> None:
        """Remove the entries, whose samples do not count."""
        for entry in self.entries:
            if isinstance(entry, LoggedSample):
                self.counts[entry.name] -= 1
        self.entries.clear()


current_log: ContextVar[StepLog | None] = ContextVar("current_log", default=None)
"""The log of the pass in progress; None outside of a training and an evaluation."""


@contextmanager
def keep_step_log() -> Iterator[None]:
    """Restore `current_log` after the block, which may be an evaluation within a training, or raise."""
    token = current_log.set(None)
    try:
        yield
    finally:
        current_log.reset(token)
