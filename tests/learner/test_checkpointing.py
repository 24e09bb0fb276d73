"""Checkpoints are written at their interval, and a failed write is handled."""

import errno

import pytest
import torch

from stages.contracts.errors import CheckpointError
from stages.contracts.history import History
from stages.learner.options import CheckpointInterval
from stages.learner.resume.checkpointing import CheckpointManager
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.runs import Checkpoint, FileCheckpointer, KeepLast

CHECKPOINT = Checkpoint({"w": torch.ones(3)}, {}, None)


class Disk(NamedMpkGzFileRecorder):
    """A disk that is full while `is_full` is set."""

    is_full = False

    def record(self, item, path):
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().record(item, path)


class Clock:
    """A clock whose seconds a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


class Halving:
    """A user's scheduler, with no more than the methods of the contract."""

    rate = 0.1

    def step(self):
        return self.rate

    def end_epoch(self, metric=None):
        self.rate /= 2

    def state_dict(self):
        return {"rate": self.rate}

    def load_state_dict(self, state):
        self.rate = state["rate"]


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def build(tmp_path, disk, clock):
    """Return a function that builds a saver on the disk."""

    def build(retention=KeepLast(2), **rule):  # noqa: B008  immutable
        places = (FileCheckpointer(tmp_path / name, disk) for name in ("checkpoint", "steps"))
        return CheckpointManager(*places, retention, CheckpointInterval(**rule), clock=clock)

    return build


@pytest.mark.parametrize("is_full", [False, True], ids=["written", "failed"])
def test_checkpoint_is_due_one_interval_after_the_last_attempt(is_full, build, disk, clock):
    saver, due = build(every_seconds=10), []
    disk.is_full = is_full

    for now in (9.5, 10.0, 15.0, 19.5, 20.0, 20.0):
        clock.now = now
        due.append(saver.is_due())
        if due[-1]:
            saver.save_step(CHECKPOINT)

    assert due == [False, True, False, False, True, False]


def test_checkpoint_of_an_epoch_starts_a_new_interval(build, clock):
    saver = build(every_seconds=10, every_steps=3)
    due = [saver.is_due(), saver.is_due()]
    clock.now = 9.0

    saver.save_epoch(1, CHECKPOINT, History())
    clock.now = 11.0

    assert [*due, saver.is_due(), saver.is_due(), saver.is_due()] == [False] * 4 + [True]


SAVES = {
    "step": lambda saver: saver.save_step(CHECKPOINT),
    "epoch": lambda saver: saver.save_epoch(2, CHECKPOINT, History()),
}


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("written", [None, 50.0], ids=["never saved", "saved"])
def test_run_fails_if_no_checkpoint_could_be_written_for_max_unsaved_seconds(
    written, save, build, disk, clock
):
    saver = build(max_unsaved_seconds=100)
    if written is not None:
        clock.now = written
        saver.save_epoch(1, CHECKPOINT, History())
        saver.wait()
    disk.is_full = True

    clock.now += 100
    save(saver)
    clock.now += 1
    save(saver)

    with pytest.raises(CheckpointError, match=r"No space left.* for 101 seconds, more than max_unsaved"):
        saver.wait()


@pytest.mark.parametrize(
    ("kept", "lost", "named", "left"),
    [
        (1, {1}, None, [4]),  # the rule does not keep it to the end
        (2, {2}, None, [3, 4]),
        (2, {4}, "4", [2, 3]),
        (2, {3}, "3", [2]),
        (1, {2, 3, 4}, "4", [1]),
        (3, {2, 4}, "2, 4", [1]),
        (4, {1, 3}, "1, 3", []),
    ],
)
def test_run_without_a_checkpoint_of_its_result_fails_and_resumes_before_it(
    kept, lost, named, left, build, disk
):
    saver = build(KeepLast(kept))
    for epoch in (1, 2, 3, 4):
        disk.is_full = epoch in lost
        saver.save_epoch(epoch, CHECKPOINT, History())
        saver.wait()

    if named:
        with pytest.raises(CheckpointError, match=f"the checkpoint of epoch {named} belongs to the result"):
            saver.finish()
    else:
        saver.finish()

    assert saver.epochs.list_saved() == left


def test_epoch_saved_by_a_later_attempt_counts_as_saved(build, disk):
    saver = build()
    for is_full in (True, False):
        disk.is_full = is_full
        saver.save_epoch(1, CHECKPOINT, History())
        saver.wait()

    saver.finish()

    assert saver.epochs.list_saved() == [1]


@pytest.mark.parametrize(("lost", "left"), [({2}, [1]), ({1, 2}, [])])
def test_run_does_not_resume_from_a_step_after_a_failed_epoch(lost, left, build, disk):
    saver = build()
    for epoch in (1, 2):
        disk.is_full = epoch in lost
        saver.save_epoch(epoch, CHECKPOINT, History())
        saver.wait()
        disk.is_full = False
        if epoch == 1:
            saver.save_step(CHECKPOINT)
            saver.wait()

    with pytest.raises(CheckpointError):
        saver.finish()

    assert saver.steps.list_saved() == left


def test_users_scheduler_resumes_and_has_no_record_of_burn(start, tiny, tmp_path):
    net, loaders = tiny
    schedulers = Halving(), Halving()

    for epochs, scheduler in enumerate(schedulers, 1):
        start(tmp_path, epochs).checkpoint("auto").build(net(), Adam(), scheduler).fit(*loaders())

    assert schedulers[1].rate == 0.1 / 4
    assert FileCheckpointer(tmp_path / "checkpoint", NamedMpkGzFileRecorder()).restore(2).scheduler is None
