"""Rules over the history: which checkpoints to keep, and whether to stop before the last epoch.

A rule is a pure function without state, so a resumed run decides exactly as an uninterrupted one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

from stages.contracts.config import Config
from stages.contracts.errors import BuilderError
from stages.contracts.fields import Count, CountFromZero, NonNegative, Text
from stages.contracts.history import Direction, History, Split, Value
from stages.contracts.user_code import place_of


class Retention(Protocol):
    """A rule that chooses the checkpoints to keep. Burn's `CheckpointingStrategy`."""

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """Return the epochs in *saved* (ascending) to keep; *history* ends with the newest of them."""


def epochs_to_keep(rule: Retention, history: History, inherited: Sequence[int], last_epoch: int) -> set[int]:
    """Return the epochs whose checkpoints a run has kept after *last_epoch*.

    The rule is applied after each epoch as the run applied it, with the values up to that epoch. *inherited*
    are the epochs of the checkpoints that the run started with.
    """
    values: dict[int, list[Value]] = {}
    for value in history:
        values.setdefault(value.epoch, []).append(value)
    first, so_far, retained = max(inherited, default=0), History(), set(inherited)
    for epoch in range(1, last_epoch + 1):
        for value in values.get(epoch, ()):
            so_far.add(value)
        if epoch >= first:
            retained = keep_epochs(rule, sorted(retained | {epoch}), so_far) | {epoch}
    return retained


@dataclass(frozen=True)
class KeepLast:
    """Keep the newest *n* checkpoints. Burn's `KeepLastNCheckpoints`."""

    n: int

    def keep(self, saved: Sequence[int], history: History) -> set[int]:  # noqa: ARG002  the protocol's
        """Return the last *n* of *saved*."""
        return set(saved[-self.n :]) if self.n > 0 else set()


@dataclass(frozen=True)
class KeepBest:
    """Keep the epoch with the best value of a metric. Burn's `MetricCheckpointingStrategy`.

    Values that are not finite are ignored; if there are no others, no epoch is kept.
    """

    metric: str = "Loss"
    split: Split = Split.VALID
    direction: Direction = Direction.LOWEST

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """The metrics, by split, that the rule reads."""
        return {(self.split, self.metric)}

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """Return the best epoch if it is in *saved*."""
        return set(saved) & {history.best(self.split, self.metric, self.direction)}


@dataclass(frozen=True)
class AnyOf:
    """Keep the epochs that any of *rules* keeps. Burn's `ComposedCheckpointingStrategy`."""

    rules: tuple[Retention, ...]

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """Return the union of the epochs that the rules keep."""
        return set().union(*(rule.keep(saved, history) for rule in self.rules))


class BestConfig(Config):
    """A metric by which the best checkpoint is kept: the params of `KeepBest`."""

    metric: Text = "Loss"
    """The metric's name in the summary of a run, such as ``Loss`` or ``Accuracy``."""
    split: Split = Split.VALID
    """``valid`` or ``train``."""
    direction: Direction = Direction.LOWEST
    """Which value is best: the ``lowest`` or the ``highest``."""


def keep_epochs(rule: "Retention", saved: Sequence[int], history: History) -> set[int]:
    """Return the epochs in *saved* that *rule* keeps. Raises `BuilderError` if it returns anything else."""
    kept: Any = rule.keep(saved, history)
    if not isinstance(kept, Collection) or not all(isinstance(epoch, Integral) for epoch in kept):
        raise BuilderError(
            f"{type(rule).__name__}.keep{place_of(type(rule).keep)} returned {kept!r}: return the set of the "
            "epochs to keep"
        )
    return set(kept)


class Keep(Config):
    """The checkpoints to keep; by default the last two and the best by validation loss, as in Burn."""

    last: Count = 2
    """Number of the newest checkpoints to keep."""
    best: tuple[BestConfig, ...] = (BestConfig(),)
    """Metrics by which the best checkpoint is kept."""

    @property
    def most(self) -> int:
        """The most checkpoints that are kept."""
        return self.last + len(self.best)

    def rule(self) -> AnyOf:
        """Return the rule that keeps these checkpoints."""
        return AnyOf((KeepLast(self.last), *(KeepBest(**dict(config)) for config in self.best)))


def default_retention() -> Retention:
    """Return the default rule: keep the last two and the best by validation loss, as in Burn."""
    return Keep().rule()


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
