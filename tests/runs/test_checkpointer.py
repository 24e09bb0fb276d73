"""Checkpoints on disk."""

import pytest
import torch

from stages.contracts.errors import CheckpointError
from stages.records import BinFileRecorder, NamedMpkFileRecorder, NamedMpkGzFileRecorder
from stages.records.dotted_names import derive_param_id
from stages.runs import Checkpoint, FileCheckpointer, read_manifest
from stages.system.files import sha256

CHECKPOINT = Checkpoint({"w": torch.ones(3)}, {"state": {}}, {"iteration": 4}, {"epoch": 2})


@pytest.fixture
def checkpointer(tmp_path):
    made = FileCheckpointer(tmp_path / "checkpoint", NamedMpkGzFileRecorder())
    made.save(2, CHECKPOINT)
    return made


def test_restored_checkpoint_equals_the_saved_one(checkpointer):
    restored = checkpointer.restore(2)

    assert torch.equal(restored.model["w"], torch.ones(3))
    assert (restored.optim, restored.scheduler, restored.trainer["epoch"]) == (
        {"state": {}},
        {"iteration": 4},
        2,
    )


@pytest.mark.parametrize("part", ["model", "optim", "scheduler"])
def test_part_of_a_checkpoint_is_restored_without_the_files_of_the_others(checkpointer, part):
    for path in checkpointer.directory.iterdir():
        if not path.name.startswith((part, "trainer")):
            path.unlink()

    restored = checkpointer.restore(2, [part])

    assert str(vars(restored)[part]) == str(vars(CHECKPOINT)[part])
    with pytest.raises(CheckpointError, match="missing"):
        checkpointer.restore(2)


def test_checkpoint_exists_only_with_its_trainer_record(checkpointer):
    (checkpointer.directory / "trainer-2.mpk.gz").unlink()

    assert checkpointer.list_saved() == []
    with pytest.raises(CheckpointError, match="no checkpoint of epoch 2; found: none"):
        checkpointer.restore(2)


@pytest.mark.parametrize("name", ["model-2", "optim-2", "scheduler-2", "trainer-2"])
@pytest.mark.parametrize("harm", ["cut", "flip", "missing"])
def test_damaged_checkpoint_is_rejected(checkpointer, name, harm):
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
def test_other_valid_record_of_the_same_size_is_rejected(part, other, tmp_path):
    checkpointer = FileCheckpointer(tmp_path, NamedMpkFileRecorder())
    checkpointer.save(2, CHECKPOINT)
    path = tmp_path / f"{part}-2.mpk"
    size = path.stat().st_size

    checkpointer.recorder.record(other, path.with_suffix(""))

    assert path.stat().st_size == size
    with pytest.raises(CheckpointError, match=f"{part}-2.* has changed since it was written"):
        checkpointer.restore(2)


def test_deletion_keeps_the_checkpoints_of_other_epochs(checkpointer):
    checkpointer.save(3, CHECKPOINT)
    checkpointer.delete(2)

    assert checkpointer.list_saved() == [3]
    assert len(list(checkpointer.directory.iterdir())) == 4


def test_trainer_record_is_stored_without_compression(checkpointer):
    """The history in it is measured numbers, which hardly compress."""
    history = torch.zeros(100_000, dtype=torch.uint8)

    checkpointer.save(2, Checkpoint({}, {}, {}, {"history": history}))

    assert (checkpointer.directory / "trainer-2.mpk.gz").stat().st_size > history.nbytes
    assert torch.equal(checkpointer.restore(2).trainer["history"], history)


class FailingRecorder(NamedMpkGzFileRecorder):
    """A recorder that fails at its second record, like a process that is killed there."""

    def record(self, tree, path):
        if path.name.startswith("optim"):
            raise OSError("killed")
        return super().record(tree, path)


def test_partial_overwrite_of_a_checkpoint_leaves_no_checkpoint(checkpointer):
    with pytest.raises(OSError, match="killed"):
        FileCheckpointer(checkpointer.directory, FailingRecorder()).save(2, CHECKPOINT)

    assert checkpointer.list_saved() == []


def test_saving_an_epoch_again_replaces_its_checkpoint(checkpointer):
    checkpointer.save(2, Checkpoint({"w": torch.zeros(3)}, {}, {}))

    assert checkpointer.list_saved() == [2]
    assert torch.equal(checkpointer.restore(2).model["w"], torch.zeros(3))


def test_restoring_a_missing_checkpoint_lists_the_existing_ones(checkpointer):
    checkpointer.save(10, CHECKPOINT)

    with pytest.raises(CheckpointError, match=r"epoch 3; found: 2, 10\. Choose another epoch$"):
        checkpointer.restore(3)


@pytest.mark.parametrize("recorder", [BinFileRecorder(), NamedMpkFileRecorder()])
def test_checkpoint_can_be_restored_with_a_recorder_of_another_format(tmp_path, recorder):
    FileCheckpointer(tmp_path, recorder).save(2, CHECKPOINT)

    for reader in (recorder, NamedMpkGzFileRecorder()):
        restored = FileCheckpointer(tmp_path, reader).restore(2)

        assert torch.equal(restored.model["w"], torch.ones(3))
        assert restored.scheduler == {"iteration": 4}


def test_manifest_of_a_checkpoint_has_size_and_hash_of_its_files(checkpointer):
    names = ["model-2.mpk.gz", "optim-2.mpk.gz", "scheduler-2.mpk.gz"]
    paths = [checkpointer.directory / name for name in names]

    assert read_manifest(checkpointer.directory, 2) == {
        path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in paths
    }
    with pytest.raises(CheckpointError, match="epoch 3 is not intact"):
        read_manifest(checkpointer.directory, 3)


def write_as_burn(directory, epoch, *, identifier="o5sfrk0319cki"):
    """Write a checkpoint of *epoch* as Burn does, without a trainer record and with a random id."""
    item = {"w": {"id": identifier, "param": torch.ones(3)}}
    for part in ("model", "optim", "scheduler"):
        NamedMpkGzFileRecorder().record(item, directory / f"{part}-{epoch}")


def test_only_files_of_partial_checkpoints_are_removed(checkpointer):
    directory = checkpointer.directory
    checkpointer.save(4, CHECKPOINT)
    write_as_burn(directory, 7)
    for name in (".model-4.mpk.gz.tmp", "notes-3.txt", "notes"):
        (directory / name).touch()
    before = {path.name for path in directory.iterdir()} - {".model-4.mpk.gz.tmp"}
    for epoch in (3, 4):  # one is new, and one replaces a checkpoint
        with pytest.raises(OSError, match="killed"):
            FileCheckpointer(directory, FailingRecorder()).save(epoch, CHECKPOINT)

    checkpointer.remove_partial_files()

    assert {path.name for path in directory.iterdir()} == {name for name in before if "-4." not in name}


def test_removal_that_is_killed_is_completed_later(checkpointer):
    directory = checkpointer.directory
    checkpointer._mark(2)  # the first act of a removal

    assert checkpointer.list_saved() == []
    assert checkpointer.list_burn_epochs() == []
    checkpointer.remove_partial_files()

    assert list(directory.iterdir()) == []


def test_epochs_of_burn_have_no_trainer_record_and_ids_of_burn(checkpointer):
    for epoch in (12, 1):
        write_as_burn(checkpointer.directory, epoch)
    write_as_burn(checkpointer.directory, 5, identifier=derive_param_id("w"))  # its trainer record was lost
    (checkpointer.directory / "model-6.mpk.gz").write_bytes(b"corrupt")

    assert checkpointer.list_burn_epochs() == [1, 12]
    assert checkpointer.list_saved() == [2]
    checkpointer.remove_partial_files()
    assert {path.name.split("-")[1] for path in checkpointer.directory.glob("model-*")} == {
        f"{epoch}.mpk.gz" for epoch in (1, 2, 6, 12)
    }
    assert FileCheckpointer(checkpointer.directory / "missing", FailingRecorder()).list_burn_epochs() == []


def test_missing_directory_has_no_checkpoints(tmp_path):
    checkpointer = FileCheckpointer(tmp_path / "missing", NamedMpkGzFileRecorder())

    checkpointer.remove_partial_files()

    assert checkpointer.list_saved() == []
