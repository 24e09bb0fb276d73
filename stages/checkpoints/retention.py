"""Which checkpoints stay: pure rules over the epochs on disk and the numbers so far.

A rule holds no state, so a resumed run decides as an unbroken one would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stages.contracts.history import Direction, History, Split


class Retention(Protocol):
    """A rule which checkpoints stay. Burn's `CheckpointingStrategy`."""

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """The epochs of *saved* (ascending) that must stay."""


@dataclass(frozen=True)
class KeepLast:
    """The newest *n*. Burn's `KeepLastNCheckpoints`."""

    n: int

    def keep(self, saved: Sequence[int], history: History) -> set[int]:  # noqa: ARG002  the protocol's
        """The last *n* of *saved*."""
        return set(saved[-self.n :]) if self.n > 0 else set()


@dataclass(frozen=True)
class KeepBest:
    """The epoch where a metric was best. A value that is not finite never wins; none has won, none stays."""

    metric: str = "Loss"
    split: Split = Split.VALID
    direction: Direction = Direction.LOWEST

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """The best epoch, where it is among *saved*."""
        return set(saved) & {history.best(self.split, self.metric, self.direction)}


@dataclass(frozen=True)
class AnyOf:
    """An epoch stays where any of *rules* wants it. Burn's `ComposedCheckpointingStrategy`."""

    rules: tuple[Retention, ...]

    def keep(self, saved: Sequence[int], history: History) -> set[int]:
        """What all rules keep, together."""
        return set().union(*(rule.keep(saved, history) for rule in self.rules))


def default_retention() -> Retention:
    """The last two and the best by validation loss, as in Burn."""
    return AnyOf((KeepLast(2), KeepBest()))
