"""Checkpoints of a sharded run: rank 0 writes whole tensors, which all ranks gather for it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from stages import distributed
from stages.contracts.history import History
from stages.distributed import RankGroup
from stages.learner.options import CheckpointInterval
from stages.records import read_tensors_with
from stages.runs import Checkpoint


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

    def __init__(self, group: RankGroup, interval: CheckpointInterval) -> None:
        self._group = group
        self.saves_within_epochs = interval.saves_within_epochs
        """True if checkpoints are written within an epoch also when the run is not interrupted."""

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
