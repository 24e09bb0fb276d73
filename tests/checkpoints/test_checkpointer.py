"""Checkpoints on disk."""

import pytest
import torch

from stages.checkpoints import Checkpoint, FileCheckpointer
from stages.contracts.errors import CheckpointError
from stages.records import NamedMpkFileRecorder, NamedMpkGzFileRecorder

CHECKPOINT = Checkpoint({"w": torch.ones(3)}, {"state": {}}, {"iteration": 4}, {"epoch": 2})


@pytest.fixture
def checkpointer(tmp_path):
    made = FileCheckpointer(tmp_path / "checkpoint", NamedMpkGzFileRecorder())
    made.save(2, CHECKPOINT)
    return made


def test_a_checkpoint_comes_back_as_it_was(checkpointer):
    restored = checkpointer.restore(2)

    assert torch.equal(restored.model["w"], torch.ones(3))
    assert (restored.optim, restored.scheduler, restored.trainer["epoch"]) == (
        {"state": {}},
        {"iteration": 4},
        2,
    )


def test_a_checkpoint_exists_only_with_its_trainer_record(checkpointer):
    (checkpointer.directory / "trainer-2.mpk.gz").unlink()

    assert checkpointer.saved() == []
    with pytest.raises(CheckpointError, match="no checkpoint of epoch 2; there: none"):
        checkpointer.restore(2)


@pytest.mark.parametrize("name", ["model-2", "optim-2", "scheduler-2", "trainer-2"])
@pytest.mark.parametrize("harm", ["cut", "flip", "missing"])
def test_a_harmed_checkpoint_is_refused(checkpointer, name, harm):
    path = checkpointer.directory / f"{name}.mpk.gz"
    content = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(content[:-1])
    elif harm == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()

    with pytest.raises(CheckpointError, match=f"{name}|no checkpoint"):
        checkpointer.restore(2)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("model", {"w": torch.zeros(3)}),
        ("optim", {"other": {}}),
        ("scheduler", {"iteration": 5}),
    ],
)
def test_a_valid_record_of_the_same_size_that_was_not_saved_is_refused(part, other, tmp_path):
    checkpointer = FileCheckpointer(tmp_path, NamedMpkFileRecorder())
    checkpointer.save(2, CHECKPOINT)
    path = tmp_path / f"{part}-2.mpk"
    size = path.stat().st_size

    checkpointer.recorder.record(other, path.with_suffix(""))

    assert path.stat().st_size == size
    with pytest.raises(CheckpointError, match=f"{part}-2.* is not as it was written"):
        checkpointer.restore(2)


def test_deleting_leaves_the_other_epochs(checkpointer):
    checkpointer.save(3, CHECKPOINT)
    checkpointer.delete(2)

    assert checkpointer.saved() == [3]
    assert len(list(checkpointer.directory.iterdir())) == 4


class FailingRecorder(NamedMpkGzFileRecorder):
    """Fails at its second record, as a run that is killed there."""

    def record(self, tree, path):
        if path.name.startswith("optim"):
            raise OSError("killed")
        return super().record(tree, path)


def test_a_checkpoint_that_is_half_written_over_another_does_not_exist(checkpointer):
    with pytest.raises(OSError, match="killed"):
        FileCheckpointer(checkpointer.directory, FailingRecorder()).save(2, CHECKPOINT)

    assert checkpointer.saved() == []


def test_a_checkpoint_is_written_over_another(checkpointer):
    checkpointer.save(2, Checkpoint({"w": torch.zeros(3)}, {}, {}))

    assert checkpointer.saved() == [2]
    assert torch.equal(checkpointer.restore(2).model["w"], torch.zeros(3))
