"""Early stopping: pure rules over the history that end a run before its last epoch.

A rule has no state, so a resumed run stops at the same epoch as an uninterrupted one.
"""

from typing import Protocol

from stages.contracts.config import Config
from stages.contracts.fields import Count, CountFromZero, NonNegative, Text
from stages.contracts.history import Direction, History, Split


class EarlyStopping(Protocol):
    """A rule that ends a run early. Burn's `EarlyStoppingStrategy`."""

    def reason(self, history: History) -> str | None:
        """Return the reason to stop after the last epoch in *history*; None to continue."""


class MetricEarlyStopping(Config):
    """Stops after ``n_epochs`` epochs without a better value. Burn's `MetricEarlyStoppingStrategy`.

    A value is better if it beats the best by more than ``min_delta``. A value that is not finite never is.
    """

    n_epochs: Count
    """Number of epochs to wait for a better value, as in Burn's condition `NoImprovementSince`."""
    metric: Text = "Loss"
    """The metric's name in the summary of a run, such as ``Loss`` or ``Accuracy``."""
    split: Split = Split.VALID
    """``valid`` or ``train``."""
    direction: Direction = Direction.LOWEST
    """Which value is better: a ``lowest`` or a ``highest`` one."""
    min_delta: NonNegative = 0.0
    warmup_epochs: CountFromZero = 0
    """Number of first epochs after which the run never stops."""

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """The split and the name of each metric that the rule reads."""
        return {(self.split, self.metric)}

    def reason(self, history: History) -> str | None:
        """Return a text with the best epoch if the run should stop; None to continue."""
        best = history.best(self.split, self.metric, self.direction, min_delta=self.min_delta) or 1
        if history.epochs <= self.warmup_epochs or history.epochs - best < self.n_epochs:
            return None
        return f"no better {self.split} {self.metric} since epoch {best}"
