"""When a run is saved, where, and what becomes of a save that fails.

After every epoch there is a checkpoint, of which a rule keeps some; in between, every so often, one of the
step, of which only the newest stays.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from stages.checkpoints import Checkpoint, FileCheckpointer, Retention
from stages.contracts.errors import CheckpointError
from stages.contracts.history import History

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavingRule:
    """How often a step is saved, and how long a run may go on unsaved."""

    every_steps: int | None = None
    """None for never by their number."""
    every_seconds: float | None = None
    """None for never by the clock."""
    max_unsaved_seconds: float = math.inf
    """A run whose saves have failed for longer than this ends."""


class Saver:
    """Writes the checkpoints of one run."""

    def __init__(
        self,
        epochs: FileCheckpointer,
        steps: FileCheckpointer,
        retention: Retention,
        rule: SavingRule,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs = epochs
        self.steps = steps
        self._retention = retention
        self._rule = rule
        self._clock = clock
        self._lost: set[int] = set()
        self._lost_before_step: set[int] = set()
        self._saved_at = self._tried_at = clock()
        self._untried_steps = 0

    def is_due(self, *, saves_next: bool = True) -> bool:
        """Whether this step is one to save after; asked once after each.

        Where the next one cannot be saved, a step comes early rather than late: no more than an interval
        is ever lost.
        """
        self._untried_steps += 1
        rule, ahead = self._rule, not saves_next
        if rule.every_steps and self._untried_steps + ahead >= rule.every_steps:
            return True
        return rule.every_seconds is not None and self._clock() - self._tried_at >= rule.every_seconds

    def save_step(self, checkpoint: Checkpoint) -> bool:
        """Save *checkpoint* as the newest step, and remove the one before; whether it could be written."""
        before = self.steps.saved()
        if not self._written(self.steps, max(before, default=0) + 1, checkpoint):
            return False
        self._lost_before_step = set(self._lost)
        for number in before:
            self.steps.delete(number)
        return True

    def save_epoch(self, epoch: int, checkpoint: Checkpoint, history: History) -> None:
        """Save *checkpoint* as that of *epoch*, and remove what no rule keeps, and what is of later epochs.

        The newest that could be written always stays, so that a run can go on from it.
        """
        log.info("Saving checkpoint %d to %s", epoch, self.epochs.directory)
        if not self._written(self.epochs, epoch, checkpoint):
            self._lost.add(epoch)
            self._kept(epoch, history)  # an earlier lost one may no longer belong to the result
            return
        self._lost.discard(epoch)
        self.tidy(epoch, history)
        for number in self.steps.saved():
            self.steps.delete(number)

    def tidy(self, epoch: int, history: History) -> None:
        """Keep of the checkpoints up to *epoch* what the rule keeps, and nothing else; *epoch* always.

        If one that the rule keeps could not be written, the newest before it stays too: to resume from.
        """
        kept = self._kept(epoch, history)
        for each in self.epochs.saved():
            if each not in kept:
                log.info("Removing checkpoint %d", each)
                self.epochs.delete(each)
        self.epochs.sweep()
        self.steps.sweep()

    def _kept(self, epoch: int, history: History) -> set[int]:
        """Return the epochs to keep after *epoch*, and forget the lost ones that the rule does not keep."""
        saved = self.epochs.saved()
        own = sorted({each for each in saved if 0 < each <= epoch} | self._lost)
        kept = self._retention.keep(own, history) | {epoch}
        self._lost &= kept
        before = [each for each in saved if each < min(self._lost, default=0)]
        return kept | set(before[-1:])

    def finish(self) -> None:
        """Raises `CheckpointError` where one that belongs to the result could not be written.

        Those after it go, so that the run can be taken up before it and come to the same result.
        """
        if not self._lost:
            return
        for epoch in self.epochs.saved():
            if epoch > min(self._lost):
                self.epochs.delete(epoch)
        if self._lost & self._lost_before_step:
            for number in self.steps.saved():
                self.steps.delete(number)
        raise CheckpointError(
            f"the checkpoint of epoch {', '.join(map(str, sorted(self._lost)))} belongs to the result and "
            f"could not be written to {self.epochs.directory}: make space and give the same command again"
        )

    def _written(self, checkpointer: FileCheckpointer, number: int, checkpoint: Checkpoint) -> bool:
        """Whether the disk let us write it; raises `CheckpointError` if it has not for too long."""
        now = self._tried_at = self._clock()
        self._untried_steps = 0
        try:
            checkpointer.save(number, checkpoint)
        except OSError as error:
            unsaved = now - self._saved_at
            said = f"no checkpoint could be written to {checkpointer.directory} ({error.strerror or error})"
            if unsaved > self._rule.max_unsaved_seconds:
                raise CheckpointError(
                    f"{said} for {unsaved:.0f} seconds, more than max_unsaved_seconds: make space and "
                    "give the same command again, and the run goes on from its last good one"
                ) from error
            log.warning("%s: the run goes on, with its last good one %.0f seconds old", said, unsaved)
            return False
        self._saved_at = self._clock()
        return True
