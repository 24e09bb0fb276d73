"""Which checkpoints stay: pure rules over the epochs on disk and the numbers so far.

A rule holds no state, so a resumed run decides as an unbroken one would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stages.contracts.config import Config
from stages.contracts.fields import Count, Text
from stages.contracts.history import Direction, History, Split, Value


class Retention(Protocol):
    """A rule which checkpoints stay. Burn's `CheckpointingStrategy`."""

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """The epochs of *saved* (ascending) that must stay."""


def kept_epochs(rule: Retention, history: History, saved: Sequence[int], last_epoch: int) -> set[int]:
    """Return the epochs whose checkpoints are kept after *last_epoch*.

    *saved* are those that the run began with, and every later epoch was saved. The rule was asked after each
    epoch, with the values up to it.
    """
    values: dict[int, list[Value]] = {}
    for value in history:
        values.setdefault(value.epoch, []).append(value)
    first, so_far, kept = max(saved, default=0), History(), set(saved)
    for epoch in range(1, last_epoch + 1):
        for value in values.get(epoch, ()):
            so_far.add(value)
        if epoch >= first:
            kept = rule.keep(sorted(kept | {epoch}), so_far) | {epoch}
    return kept


@dataclass(frozen=True)
class KeepLast:
    """The newest *n*. Burn's `KeepLastNCheckpoints`."""

    n: int

    def keep(self, saved: Sequence[int], history: History) -> set[int]:  # noqa: ARG002  the protocol's
        """The last *n* of *saved*."""
        return set(saved[-self.n :]) if self.n > 0 else set()


@dataclass(frozen=True)
class KeepBest:
    """The epoch where a metric was best. Burn's `MetricCheckpointingStrategy`.

    A value that is not finite never wins; where none has won, none stays.
    """

    metric: str = "Loss"
    split: Split = Split.VALID
    direction: Direction = Direction.LOWEST

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """What must be measured for it."""
        return {(self.split, self.metric)}

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """The best epoch, where it is among *saved*."""
        return set(saved) & {history.best(self.split, self.metric, self.direction)}


@dataclass(frozen=True)
class AnyOf:
    """An epoch stays where any of *rules* wants it. Burn's `ComposedCheckpointingStrategy`."""

    rules: tuple[Retention, ...]

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """What must be measured for any of them."""
        return set().union(*(getattr(rule, "needs", set()) for rule in self.rules))

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """What all rules keep, together."""
        return set().union(*(rule.keep(saved, history) for rule in self.rules))


class Best(Config):
    """A `KeepBest`, as params say it."""

    metric: Text = "Loss"
    split: Split = Split.VALID
    direction: Direction = Direction.LOWEST


class Keep(Config):
    """Which checkpoints stay, as params say it: the last two and the best by validation loss, as in Burn."""

    last: Count = 2
    """How many of the newest."""
    best: tuple[Best, ...] = (Best(),)
    """By which metrics the best."""

    @property
    def most(self) -> int:
        """How many stay at most."""
        return self.last + len(self.best)

    def rule(self) -> AnyOf:
        """All of it as one rule."""
        best = (KeepBest(each.metric, each.split, each.direction) for each in self.best)
        return AnyOf((KeepLast(self.last), *best))


def default_retention() -> Retention:
    """The last two and the best by validation loss, as in Burn."""
    return Keep().rule()
