"""The checkpoints of a run: writing, retention, failures to write, and the choice of one to resume from.

A checkpoint is written after every epoch, and a retention rule decides which of them are kept. Within an
epoch checkpoints are written at an interval, and only the newest is kept.

Training continues while a copy of the state is written. The next save waits until the previous one is on
disk, so a killed run resumes from the last save or, if that was still being written, from the one before it.
A copy takes as much memory as the state. Training on a CPU waits instead while a large state is written,
unless an interval of steps is set, with which checkpoints may be frequent.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from stages import distributed
from stages.contracts.errors import CheckpointError
from stages.contracts.history import History
from stages.distributed import RankGroup
from stages.learner.options import CheckpointInterval
from stages.learner.run_state import LoopPosition
from stages.records import read_tensors_with
from stages.runs import Checkpoint, FileCheckpointer, Retention, SnapshotWriter
from stages.runs.manifest import find_damage
from stages.runs.retention import keep_epochs

MAX_COPIED_BYTES = 16 << 20
"""Bytes of a state on a CPU up to which training continues while a copy of it is written."""

log = logging.getLogger(__name__)


@dataclass
class _Save:
    """A save: the write of a checkpoint and, after it, the removal of those that it replaces."""

    checkpointer: FileCheckpointer
    number: int
    started_at: float
    kept: set[int] | None = None
    """The epochs that the rule keeps; None within an epoch, and if the rule failed."""
    replaced: list[tuple[FileCheckpointer, int]] = field(default_factory=list)
    error: OSError | None = None
    """The reason why the checkpoint could not be written."""

    def run(self, checkpoint: Checkpoint) -> None:
        """Write *checkpoint*, and remove the replaced ones when it is on disk."""
        try:
            self.checkpointer.save(self.number, checkpoint)
        except OSError as error:
            self.error = error
            return
        for checkpointer, number in self.replaced:
            checkpointer.delete(number)


class CheckpointManager:
    """Writes and removes the checkpoints of one run.

    A save returns when it has copied the state; `wait` returns when the checkpoint is written. One save is in
    progress at a time.
    """

    def __init__(
        self,
        epochs: FileCheckpointer,
        steps: FileCheckpointer,
        retention: Retention,
        interval: CheckpointInterval,
        *,
        writer: "SnapshotWriter | GatheringWriter | None" = None,
        clock: Callable[[], float] = time.monotonic,
        on_epoch_saved: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.epochs = epochs
        self.steps = steps
        self._retention = retention
        self._interval = interval
        self._clock = clock
        self._on_epoch_saved = on_epoch_saved
        self._writer = writer or SnapshotWriter(math.inf if interval.every_steps else MAX_COPIED_BYTES)
        self._save: _Save | None = None
        self._failed: set[int] = set()
        self._failed_before_step: set[int] = set()
        self._saved_at = self._tried_at = clock()
        self._steps_since_try = 0

    def is_due(self, *, can_save_next: bool = True) -> bool:
        """Return whether to save after this step; call it once after each step.

        If the run cannot save after the next step, a save is due a step early, so that two saves are never
        further apart than an interval. Raises as `wait` if the previous save has ended.
        """
        if self._save is not None and not self._writer.is_writing:
            self.wait()
        self._steps_since_try += 1
        interval, ahead = self._interval, not can_save_next
        if interval.every_steps and self._steps_since_try + ahead >= interval.every_steps:
            return True
        return interval.every_seconds is not None and self._clock() - self._tried_at >= interval.every_seconds

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Provide the memory for checkpoints like *checkpoint*, while training continues."""
        self._writer.prepare(checkpoint)

    def save_step(self, checkpoint: Checkpoint) -> None:
        """Save *checkpoint* as the newest within its epoch; it replaces the previous one."""
        self.wait()
        previous = self.steps.list_saved()
        save = _Save(self.steps, max(previous, default=0) + 1, self._clock())
        save.replaced = [(self.steps, number) for number in previous]
        self._start(save, checkpoint)

    def save_epoch(self, epoch: int, checkpoint: Checkpoint, history: History) -> None:
        """Save *checkpoint* as that of *epoch*; it replaces those that the rule drops, and later epochs.

        The newest that could be written is always kept, so that the run can resume from it.
        """
        self.wait()
        log.info("Saving checkpoint %d to %s", epoch, self.epochs.directory)
        save = _Save(self.epochs, epoch, self._clock())
        try:
            saved = self.epochs.list_saved()
            save.kept = self._choose_kept({*saved, epoch}, epoch, history)
            retained = save.kept | self._newest_before_failed((self._failed & save.kept) - {epoch})
            save.replaced = [(self.epochs, number) for number in saved if number not in retained]
            save.replaced += [(self.steps, number) for number in self.steps.list_saved()]
        finally:  # the checkpoint is written even if the rule raises
            self._start(save, checkpoint)

    def apply_retention(self, epoch: int, history: History) -> None:
        """Remove all checkpoints but *epoch* and those up to it that the rule keeps.

        If one that the rule keeps could not be written, the newest before it is kept too, to resume from.
        """
        saved = self.epochs.list_saved()
        retained = self._choose_kept(set(saved), epoch, history)
        self._failed &= retained
        retained |= self._newest_before_failed(self._failed)
        for number in saved:
            if number not in retained:
                log.info("Removing checkpoint %d", number)
                self.epochs.delete(number)
        self._remove_partial_files()

    def wait(self) -> None:
        """Wait until the last save has ended.

        Raises `CheckpointError` if no checkpoint could be written for longer than ``max_unsaved_seconds``,
        and whatever else prevented the save.
        """
        self._writer.join()
        save, self._save = self._save, None
        self._writer.raise_error()
        if save is None:
            return
        if save.error is not None:
            self._report_failure(save, save.error)
            return
        self._saved_at = save.started_at
        if save.checkpointer is self.steps:
            self._failed_before_step = set(self._failed)
            return
        self._on_epoch_saved(save.number)
        self._failed.discard(save.number)
        if save.kept is None:
            return
        self._failed &= save.kept  # the result may no longer need an earlier one that failed
        for checkpointer, number in save.replaced:
            if checkpointer is self.epochs:
                log.info("Removing checkpoint %d", number)
        self._remove_partial_files()

    @contextmanager
    def complete_saves(self) -> Iterator[None]:
        """Wait at the end of the block as `wait` does, and free the memory of the copies.

        If the block raises, raise only what it raised.
        """
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self.wait()
            raise
        else:
            self.wait()
        finally:
            self._writer.release()

    def finish(self) -> None:
        """Raise `CheckpointError` if a checkpoint that belongs to the result could not be written.

        Later checkpoints are removed then, so that the next run resumes before it and has the same result.
        """
        self.wait()
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

    def _choose_kept(self, saved: set[int], epoch: int, history: History) -> set[int]:
        """Return the epochs in *saved* up to *epoch*, and those that failed, that the rule keeps."""
        candidates = {number for number in saved if 0 < number <= epoch} | self._failed
        return keep_epochs(self._retention, sorted(candidates), history) | {epoch}

    def _newest_before_failed(self, failed: set[int]) -> set[int]:
        """Return the newest saved epoch before those in *failed*, from which the run would resume."""
        before = [number for number in self.epochs.list_saved() if number < min(failed, default=0)]
        return set(before[-1:])

    def _start(self, save: _Save, checkpoint: Checkpoint) -> None:
        self._tried_at = save.started_at
        self._steps_since_try = 0
        self._writer.start(save.run, checkpoint)
        self._save = save

    def _remove_partial_files(self) -> None:
        self.epochs.remove_partial_files()
        self.steps.remove_partial_files()

    def _report_failure(self, save: _Save, error: OSError) -> None:
        """Log a warning, or raise `CheckpointError` if too much time has passed since the last checkpoint."""
        unsaved = save.started_at - self._saved_at
        message = f"cannot write a checkpoint to {save.checkpointer.directory} ({error.strerror or error})"
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
        if save.kept is not None:
            self._failed = (self._failed | {save.number}) & save.kept


@dataclass(frozen=True)
class Candidate:
    """A checkpoint to resume from, and how to read it."""

    sort_key: tuple[int, bool, int]
    """The `LoopPosition.sort_key` of its position."""
    name: str
    read: Callable[[], Checkpoint]


def find_newest_checkpoint(
    epochs: FileCheckpointer,
    steps: FileCheckpointer,
    *,
    last_epoch: int,
    identity: str | None,
    verify_logs: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> Checkpoint | None:
    """Return the newest intact checkpoint up to *last_epoch*; None if there are no checkpoints.

    A corrupt checkpoint is skipped with a warning, also one whose logs changed; those of one within an epoch
    are verified by *verify_logs*. Raises `CheckpointError` if there are checkpoints but none is intact, and
    for a checkpoint of a run other than *identity*.
    """
    candidates, broken = _read_steps(steps, verify_logs)
    candidates += [
        Candidate((epoch + 1, False, 0), f"epoch {epoch}", partial(epochs.restore, epoch))
        for epoch in epochs.list_saved()
    ]
    for candidate in sorted(candidates, key=attrgetter("sort_key"), reverse=True):
        if candidate.sort_key > (last_epoch + 1, False, 0):
            continue
        try:
            checkpoint = candidate.read()
            verify_epoch_logs(epochs.directory.parent, checkpoint)
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


def verify_epoch_logs(directory: Path, checkpoint: Checkpoint) -> None:
    """Raise `CheckpointError` if logs in *directory* of the epoch of *checkpoint* are missing or changed."""
    for name, problem in find_damage(directory, checkpoint.trainer.get("logs", {})).items():
        raise CheckpointError(
            f"{directory / name}, a log of the checkpoint's epoch, {problem}. Restore it, or resume from an "
            "earlier checkpoint"
        )


def _read_steps(
    steps: FileCheckpointer, verify_logs: Callable[[Mapping[str, Any]], None]
) -> tuple[list[Candidate], list[str]]:
    """Return the intact checkpoints within an epoch, and a message for each of the others."""
    readable, broken = [], []
    for number in reversed(steps.list_saved()):
        try:
            checkpoint = steps.restore(number)
            position = LoopPosition.from_tree(checkpoint.trainer["place"])
            verify_logs(position.logs)
        except (CheckpointError, KeyError) as error:
            log.warning("Passing over a checkpoint within an epoch: %s", error)
            broken.append(str(error))
        else:
            readable.append(Candidate(position.sort_key, f"a step {position}", partial(replace, checkpoint)))
    return readable, broken


def _check_identity(checkpoint: Checkpoint, identity: str | None, name: str) -> None:
    other = checkpoint.trainer.get("identity")
    if identity is not None and other not in (None, identity):
        raise CheckpointError(
            f"the checkpoint of {name} belongs to run {other}, but this is run {identity}: remove the "
            "checkpoint, which was copied here from the other run"
        )


class GatheringWriter:
    """A writer of checkpoints on rank 0, which returns when a checkpoint is on disk.

    Unlike `SnapshotWriter` it makes no copy, which would need the memory for the whole state.
    """

    is_writing = False

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Do nothing: no memory is kept for copies."""

    def start(self, write: Callable[[Checkpoint], None], checkpoint: Checkpoint) -> None:
        """Call *write* with *checkpoint*, whose tensors the ranks gather when they are read."""
        gathering = distributed.TensorGathering(self._group)
        whole = _read_with(checkpoint, gathering.prepare)
        try:
            write(whole)
        finally:
            gathering.end()

    def join(self) -> None:
        """Return at once: no write is in progress."""

    def raise_error(self) -> None:
        """Return at once: `start` raises."""

    def release(self) -> None:
        """Do nothing: no memory is kept."""


class FollowingCheckpoints:
    """The checkpoints of a rank other than rank 0, which only gathers what rank 0 writes."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def is_due(self, *, can_save_next: bool = True) -> bool:  # noqa: ARG002  rank 0 decides
        """Return False: rank 0 asks for a save."""
        return False

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Do nothing: no memory is kept for copies."""

    def save_step(self, checkpoint: Checkpoint) -> None:
        """Gather what rank 0 writes of *checkpoint*."""
        gathering = distributed.TensorGathering(self._group)
        _read_with(checkpoint, gathering.prepare)
        gathering.follow()

    def save_epoch(self, epoch: int, checkpoint: Checkpoint, history: History) -> None:  # noqa: ARG002
        """Gather what rank 0 writes of *checkpoint*."""
        self.save_step(checkpoint)

    def apply_retention(self, epoch: int, history: History) -> None:
        """Do nothing: rank 0 removes checkpoints."""

    def complete_saves(self) -> AbstractContextManager[None]:
        """Return an empty context: no save is in progress after a call."""
        return nullcontext()

    def finish(self) -> None:
        """Do nothing: rank 0 reports what could not be written."""


def _read_with(checkpoint: Checkpoint, prepare: Callable[[Tensor], Callable[[], Tensor]]) -> Checkpoint:
    parts = {name: read_tensors_with(part, prepare) for name, part in vars(checkpoint).items()}
    return Checkpoint(**parts)
