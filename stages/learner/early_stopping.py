"""When a run has come as far as it will: pure rules over the numbers so far.

A rule holds no state, so a resumed run stops where an unbroken one would have.
"""

from typing import Protocol

from stages.contracts.config import Config
from stages.contracts.fields import Count, CountFromZero, NonNegative, Text
from stages.contracts.history import Direction, History, Split


class EarlyStopping(Protocol):
    """A rule when to stop. Burn's `EarlyStoppingStrategy`."""

    def reason(self, history: History) -> str | None:
        """Why to stop after the last epoch in *history*; None to go on."""


class MetricEarlyStopping(Config):
    """Stops after ``n_epochs`` without a better value. Burn's `MetricEarlyStoppingStrategy`.

    A value is better where it beats the best by more than ``min_delta``; one that is not finite never is.
    """

    n_epochs: Count
    """How long to wait: the condition `NoImprovementSince` of Burn."""
    metric: Text = "Loss"
    split: Split = Split.VALID
    direction: Direction = Direction.LOWEST
    min_delta: NonNegative = 0.0
    warmup_epochs: CountFromZero = 0
    """Never stops before these are over."""

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """What must be measured for it."""
        return {(self.split, self.metric)}

    def reason(self, history: History) -> str | None:
        """Names the epoch that has not been beaten since."""
        found = history.best(self.split, self.metric, self.direction, min_delta=self.min_delta)
        best = found or 1
        if history.epochs <= self.warmup_epochs or history.epochs - best < self.n_epochs:
            return None
        return f"no better {self.split} {self.metric} since epoch {best}"
