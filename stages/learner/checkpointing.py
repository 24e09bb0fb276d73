"""The checkpoints of a run: writing, retention, failures to write, and the choice of one to resume from.

A checkpoint is written after every epoch, and a retention rule decides which of them are kept. Within an
epoch checkpoints are written at an interval, and only the newest is kept.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stages.checkpoints import Checkpoint, FileCheckpointer, Retention
from stages.contracts.errors import CheckpointError
from stages.contracts.history import History
from stages.learner.options import CheckpointInterval
from stages.learner.run_state import LoopPosition

log = logging.getLogger(__name__)


class CheckpointManager:
    """Writes and removes the checkpoints of one run."""

    def __init__(
        self,
        epochs: FileCheckpointer,
        steps: FileCheckpointer,
        retention: Retention,
        interval: CheckpointInterval,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs = epochs
        self.steps = steps
        self._retention = retention
        self._interval = interval
        self._clock = clock
        self._failed: set[int] = set()
        self._failed_before_step: set[int] = set()
        self._saved_at = self._tried_at = clock()
        self._steps_since_try = 0

    @property
    def saves_within_epochs(self) -> bool:
        """True if checkpoints are written within an epoch also when the run is not interrupted."""
        return self._interval.every_steps is not None or self._interval.every_seconds is not None

    def is_due(self, *, can_save_next: bool = True) -> bool:
        """Return whether to write a checkpoint after this step; call it once after each step.

        If none can be written after the next step, one is due a step early, so that a crash never costs more
        than an interval.
        """
        self._steps_since_try += 1
        interval, ahead = self._interval, not can_save_next
        if interval.every_steps and self._steps_since_try + ahead >= interval.every_steps:
            return True
        return interval.every_seconds is not None and self._clock() - self._tried_at >= interval.every_seconds

    def save_step(self, checkpoint: Checkpoint) -> bool:
        """Write *checkpoint* as the newest within its epoch and remove the previous one.

        Return whether it could be written.
        """
        previous = self.steps.list_saved()
        if not self._write(self.steps, max(previous, default=0) + 1, checkpoint):
            return False
        self._failed_before_step = set(self._failed)
        for number in previous:
            self.steps.delete(number)
        return True

    def save_epoch(self, epoch: int, checkpoint: Checkpoint, history: History) -> None:
        """Write *checkpoint* as that of *epoch*; remove those that the rule drops and those of later epochs.

        The newest that could be written is always kept, so that the run can resume from it.
        """
        log.info("Saving checkpoint %d to %s", epoch, self.epochs.directory)
        if not self._write(self.epochs, epoch, checkpoint):
            self._failed.add(epoch)
            self._find_kept(epoch, history)  # the result may no longer need an earlier one that failed
            return
        self._failed.discard(epoch)
        self.apply_retention(epoch, history)
        for number in self.steps.list_saved():
            self.steps.delete(number)

    def apply_retention(self, epoch: int, history: History) -> None:
        """Remove all checkpoints but *epoch* and those up to it that the rule keeps.

        If one that the rule keeps could not be written, the newest before it is kept too, to resume from.
        """
        kept = self._find_kept(epoch, history)
        for each in self.epochs.list_saved():
            if each not in kept:
                log.info("Removing checkpoint %d", each)
                self.epochs.delete(each)
        self.epochs.remove_partial_files()
        self.steps.remove_partial_files()

    def finish(self) -> None:
        """Raise `CheckpointError` if a checkpoint that belongs to the result could not be written.

        Later checkpoints are removed then, so that the next run resumes before it and has the same result.
        """
        if not self._failed:
            return
        for epoch in self.epochs.list_saved():
            if epoch > min(self._failed):
                self.epochs.delete(epoch)
        if self._failed & self._failed_before_step:
            for number in self.steps.list_saved():
                self.steps.delete(number)
        raise CheckpointError(
            f"the checkpoint of epoch {', '.join(map(str, sorted(self._failed)))} belongs to the result and "
            f"could not be written to {self.epochs.directory}. Free some space and run the same command "
            "again to resume"
        )

    def _find_kept(self, epoch: int, history: History) -> set[int]:
        """Return the epochs to keep after *epoch*, and forget failed ones that the rule does not keep."""
        saved = self.epochs.list_saved()
        own = sorted({each for each in saved if 0 < each <= epoch} | self._failed)
        kept = self._retention.keep(own, history) | {epoch}
        self._failed &= kept
        before = [each for each in saved if each < min(self._failed, default=0)]
        return kept | set(before[-1:])

    def _write(self, checkpointer: FileCheckpointer, number: int, checkpoint: Checkpoint) -> bool:
        """Return whether *checkpoint* could be written.

        Raises `CheckpointError` if none could be written for longer than ``max_unsaved_seconds``.
        """
        now = self._tried_at = self._clock()
        self._steps_since_try = 0
        try:
            checkpointer.save(number, checkpoint)
        except OSError as error:
            unsaved = now - self._saved_at
            message = f"cannot write a checkpoint to {checkpointer.directory} ({error.strerror or error})"
            if unsaved > self._interval.max_unsaved_seconds:
                raise CheckpointError(
                    f"{message} for {unsaved:.0f} seconds, more than max_unsaved_seconds. Free some space "
                    "and run the same command again to resume from the last checkpoint"
                ) from error
            log.warning(
                "%s. The run continues; its last checkpoint is %.0f seconds old. Free some space",
                message,
                unsaved,
            )
            return False
        self._saved_at = self._clock()
        return True


@dataclass(frozen=True)
class Candidate:
    """A checkpoint to resume from, and how to read it."""

    sort_key: tuple[int, bool, int]
    """The `LoopPosition.sort_key` of its position."""
    name: str
    read: Callable[[], Checkpoint]


def _accept_logs(positions: Mapping[str, Any]) -> None:
    """Accept logs at all *positions*."""


def find_newest_checkpoint(
    epochs: FileCheckpointer,
    steps: FileCheckpointer,
    *,
    last_epoch: int,
    identity: str | None,
    verify_logs: Callable[[Mapping[str, Any]], None] = _accept_logs,
) -> Checkpoint | None:
    """Return the newest intact checkpoint up to *last_epoch*; None if there are no checkpoints.

    A corrupt checkpoint is skipped with a warning, also one within an epoch if *verify_logs* raises for its
    logs. Raises `CheckpointError` if there are checkpoints but none is intact, and for a checkpoint of a run
    other than *identity*.
    """
    found, broken = _read_steps(steps, verify_logs)
    found += [
        Candidate((epoch + 1, False, 0), f"epoch {epoch}", partial(epochs.restore, epoch))
        for epoch in epochs.list_saved()
        if epoch <= last_epoch
    ]
    for candidate in sorted(found, key=lambda each: each.sort_key, reverse=True):
        if candidate.sort_key > (last_epoch + 1, False, 0):
            continue
        try:
            checkpoint = candidate.read()
        except CheckpointError as error:
            log.warning("Passing over the checkpoint of %s: %s", candidate.name, error)
            broken.append(str(error))
            continue
        _check_identity(checkpoint, identity, candidate.name)
        return checkpoint
    if broken:
        raise CheckpointError(
            f"found {len(broken)} checkpoints, none intact; refusing to start over and overwrite them:\n  "
            + "\n  ".join(broken)
            + f"\nTo start over, remove {epochs.directory.parent}"
        )
    return None


def _read_steps(
    steps: FileCheckpointer, verify_logs: Callable[[Mapping[str, Any]], None]
) -> tuple[list[Candidate], list[str]]:
    """Return the intact checkpoints within an epoch, and a message for each of the others."""
    found, broken = [], []
    for number in reversed(steps.list_saved()):
        try:
            checkpoint = steps.restore(number)
            position = LoopPosition.from_tree(checkpoint.trainer["place"])
            verify_logs(position.logs)
        except (CheckpointError, KeyError) as error:
            log.warning("Passing over a checkpoint within an epoch: %s", error)
            broken.append(str(error))
        else:
            found.append(Candidate(position.sort_key, f"a step {position}", partial(_return, checkpoint)))
    return found, broken


def _return(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint


def _check_identity(checkpoint: Checkpoint, identity: str | None, name: str) -> None:
    other = checkpoint.trainer.get("identity")
    if identity is not None and other not in (None, identity):
        raise CheckpointError(
            f"the checkpoint of {name} belongs to run {other}, but this is run {identity}: remove the "
            "checkpoint, which was copied here from the other run"
        )
