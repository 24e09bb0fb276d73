"""A run continues while a checkpoint is written, with the same files as if it had waited."""

import threading

import pytest
import torch
from run_files import read_run_files
from waiting import LIMIT_SECONDS

from stages.contracts.errors import CheckpointError
from stages.contracts.history import History
from stages.learner.options import CheckpointInterval
from stages.learner.resume.checkpointing import CheckpointManager
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer
from stages.runs import Checkpoint, FileCheckpointer, KeepLast

WRITER = "checkpoint-writer"


def is_writing():
    return any(thread.name == WRITER for thread in threading.enumerate())


class SlowDisk(NamedMpkGzFileRecorder, NoRenderer):
    """Writes the checkpoint of *epoch* when the next epoch has made two steps, or the run has ended."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch, self.go, self.present = epoch, threading.Event(), []

    def record(self, item, path):
        if path.name.endswith(f"-{self.epoch}"):
            assert self.go.wait(LIMIT_SECONDS)
            self.present.append(sorted(each.name for each in path.parent.glob("trainer-*")))
        return super().record(item, path)

    def step(self, progress):
        if progress.epoch > self.epoch and progress.batch == 2:
            self.go.set()


@pytest.mark.parametrize("workers", [0, 2])
def test_checkpoint_written_during_the_next_epoch_has_the_same_bytes(train, workers, tmp_path):
    """With workers, the processes of the next epoch are forked while the thread writes."""
    disk = SlowDisk(2)
    train(tmp_path / "fast", change=lambda builder: builder.with_checkpointing_strategy(KeepLast(3)))

    def change(builder):
        builder.with_checkpointing_strategy(KeepLast(3)).with_progress_logger(disk)
        return builder.with_file_checkpointer(disk)

    train(tmp_path / "slow", change=change, workers=workers)

    assert len(disk.present) == 3
    assert read_run_files(tmp_path / "slow") == read_run_files(tmp_path / "fast")


def test_replaced_checkpoint_is_kept_until_the_next_one_is_written(train, tmp_path):
    disk = SlowDisk(2)

    def change(builder):
        builder.with_checkpointing_strategy(KeepLast(1)).with_progress_logger(disk)
        return builder.with_file_checkpointer(disk)

    learner = train(tmp_path, change=change)

    assert disk.present == [["trainer-1.mpk.gz"]] * 3
    assert learner.epoch == 3
    assert [path.name for path in tmp_path.glob("checkpoint/trainer-*")] == ["trainer-3.mpk.gz"]


def test_memory_of_the_copy_is_provided_after_the_first_step_and_freed_at_the_end(start, tiny, tmp_path):
    class Watch(NoRenderer):
        def step(self, progress):
            sizes.append(snapshot_bytes())

    def snapshot_bytes():
        return learner.components.checkpoints._writer._snapshot.nbytes

    (net, loaders), sizes = tiny, []
    learner = start(tmp_path, 1).checkpoint_every(steps=100).renderer(Watch()).build(net(), Adam(), 0.05)

    learner.fit(*loaders())

    assert sizes[0] == 0
    assert sizes[1] > 0
    assert snapshot_bytes() == 0


class Broken(NamedMpkGzFileRecorder):
    def record(self, item, path):
        raise ArithmeticError("the recorder is broken")


def test_exception_while_writing_is_raised_by_fit(train, tmp_path):
    with pytest.raises(ArithmeticError, match="the recorder is broken"):
        train(tmp_path, change=lambda builder: builder.with_file_checkpointer(Broken()))

    assert not is_writing()


class RaisingRule:
    def keep(self, saved, history):
        raise ArithmeticError("the rule is broken")


def test_checkpoint_is_complete_when_fit_raises(train, tmp_path):
    def change(builder):
        return builder.with_checkpointing_strategy(RaisingRule())

    with pytest.raises(ArithmeticError, match="the rule is broken"):
        train(tmp_path, change=change)

    assert not is_writing()
    assert FileCheckpointer(tmp_path / "checkpoint", NamedMpkGzFileRecorder()).list_saved() == [1]


def test_checkpoint_is_complete_when_a_stopped_run_returns(train, tmp_path):
    class Stop(NoRenderer):
        def step(self, progress):
            if progress.batch == 2:
                interrupter.stop("the test")

    def change(builder):
        nonlocal interrupter
        interrupter = builder.interrupter()
        return builder.renderer(Stop())

    interrupter = None
    train(tmp_path, change=change)

    assert not is_writing()
    assert FileCheckpointer(tmp_path / "steps", NamedMpkGzFileRecorder()).restore(1).trainer["place"]


@pytest.fixture
def build(tmp_path):
    """Return a function that builds a manager with a recorder."""

    def build(recorder, **interval):
        folders = (FileCheckpointer(tmp_path / name, recorder) for name in ("checkpoint", "steps"))
        return CheckpointManager(*folders, KeepLast(9), CheckpointInterval(**interval))

    return build


def test_each_of_several_saves_in_succession_has_its_own_values(build):
    manager, weights = build(NamedMpkGzFileRecorder()), torch.zeros(3)
    for epoch in (1, 2, 3):
        weights.fill_(epoch)
        manager.save_epoch(epoch, Checkpoint({"w": weights}, {}, None), History())

    manager.finish()

    assert [manager.epochs.restore(epoch).model["w"][0].item() for epoch in (1, 2, 3)] == [1, 2, 3]


class FullDisk(NamedMpkGzFileRecorder):
    def record(self, item, path):
        raise OSError(28, "No space left on device")


def test_failed_write_is_reported_after_the_next_step(build, caplog):
    manager = build(FullDisk())
    manager.save_step(Checkpoint({}, {}, None))
    manager._writer.join()

    is_due = manager.is_due()

    assert not is_due
    assert "No space left on device). The run continues" in caplog.text


def test_run_fails_after_the_next_step_if_nothing_could_be_written_for_too_long(build):
    manager = build(FullDisk(), max_unsaved_seconds=-1)
    manager.save_step(Checkpoint({}, {}, None))
    manager._writer.join()

    with pytest.raises(CheckpointError, match="more than max_unsaved_seconds"):
        manager.is_due()
