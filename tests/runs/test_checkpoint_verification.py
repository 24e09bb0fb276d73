"""Verification of the records and checkpoints in a directory."""

import gzip

import pytest
import torch

from stages.contracts.errors import RecordError
from stages.records import NamedMpkGzFileRecorder, OriginalPrecision
from stages.records.limits import LEAST_LIMIT
from stages.runs import Checkpoint, FileCheckpointer
from stages.runs.verification import verify_path
from stages.system.files import describe

RECORDER = NamedMpkGzFileRecorder(OriginalPrecision)
NAMES = [f"{part}-2.mpk.gz" for part in ("model", "optim", "scheduler", "trainer")]


@pytest.fixture
def folder(tmp_path):
    """A directory with the checkpoint of epoch 2."""
    saved = Checkpoint({"w": torch.ones(3)}, {"state": {}}, {"iteration": 4}, {"epoch": 2})
    FileCheckpointer(tmp_path, RECORDER).save(2, saved)
    return tmp_path


def verify(path, **options):
    """Return the verdicts on the files at *path* by file name, and the one on the checkpoint, if any."""
    verdicts = list(verify_path(path, **options))
    files = {each.name.rpartition("/")[2]: each for each in verdicts if each.epoch is None}
    return files, next((each for each in verdicts if each.epoch is not None), None)


def rewrite_trainer(folder, files):
    RECORDER.record({"epoch": 2, "files": files}, folder / "trainer-2")


def test_intact_checkpoint_has_a_verdict_on_each_file_and_on_the_whole(folder):
    files, whole = verify(folder)

    assert sorted(files) == NAMES
    assert {each.problem for each in files.values()} == {None}
    assert (whole.name, whole.problem, whole.note) == (f"checkpoint 2 in {folder}", None, "4 files")
    assert whole.epoch == 2


@pytest.mark.parametrize("name", NAMES)
def test_file_is_verified_alone(folder, name):
    (folder / "other.mpk.gz").write_bytes(b"")
    assert [each.problem for each in verify_path(folder / name)] == [None]

    (folder / name).write_bytes((folder / name).read_bytes()[:-9])

    [verdict] = verify_path(folder / name)
    assert verdict.name == str(folder / name)
    assert verdict.problem


@pytest.mark.parametrize("name", NAMES)
def test_truncated_file_makes_its_checkpoint_damaged_with_the_same_problem(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-9])

    files, whole = verify(folder)

    assert [each for each, verdict in files.items() if verdict.problem] == [name]
    assert (whole.epoch, whole.problem) == (2, files[name].problem)


def test_missing_or_replaced_file_makes_a_checkpoint_damaged(folder):
    RECORDER.record({"w": torch.zeros(3)}, folder / "model-2")
    assert f"{folder / 'model-2.mpk.gz'} has " in verify(folder)[1].problem

    (folder / "model-2.mpk.gz").unlink()

    assert verify(folder)[1].problem == f"{folder / 'model-2.mpk.gz'} is missing"


@pytest.mark.parametrize("listed", [None, {}, [1], "model-2.mpk.gz"])
def test_trainer_record_without_a_list_of_files_is_reported(folder, listed):
    rewrite_trainer(folder, listed)

    files, whole = verify(folder)

    assert {each.problem for each in files.values()} == {None}
    assert whole.problem == f"{folder / 'trainer-2.mpk.gz'} does not list the files of the checkpoint"


@pytest.mark.parametrize("entry", [None, {"size": 3}, {"sha256": ""}])
def test_entry_without_size_and_hash_is_reported(folder, entry):
    rewrite_trainer(folder, {"model-2.mpk.gz": entry})

    problem = verify(folder)[1].problem

    assert problem == f"the trainer record has no size and sha256 of {folder / 'model-2.mpk.gz'}"


@pytest.mark.parametrize("name", ["trainer-2.mpk", "weights.mpk.gz"])
def test_directory_without_a_trainer_record_has_no_checkpoint(tmp_path, name):
    RECORDER.record({"w": torch.ones(3)}, tmp_path / "weights")
    (tmp_path / "weights.mpk.gz").rename(tmp_path / name)

    files, whole = verify(tmp_path)

    assert list(files) == [name]
    assert whole is None


def test_highly_compressed_file_is_read_if_its_hash_is_listed(folder):
    """A hash that matches shows that the file is not a decompression bomb from elsewhere."""
    path = RECORDER.record({"w": torch.zeros(LEAST_LIMIT, dtype=torch.uint8)}, folder / "model-2")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())))
    files, whole = verify(folder)
    assert "--limit" in files["model-2.mpk.gz"].problem
    assert whole.problem == files["model-2.mpk.gz"].problem
    assert next(verify_path(path, limit=2 * LEAST_LIMIT)).problem is None

    rewrite_trainer(folder, {path.name: describe(path)})

    files, whole = verify(folder)
    assert files["model-2.mpk.gz"].problem is None
    assert (whole.problem, whole.note) == (None, "2 files")


def test_trainer_record_may_be_highly_compressed(folder):
    path = folder / "trainer-2.mpk.gz"
    RECORDER.record(
        {"files": {}, "history": torch.zeros(LEAST_LIMIT, dtype=torch.uint8)}, folder / "trainer-2"
    )
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())))

    files, whole = verify(folder)

    assert next(verify_path(path)).problem is None
    assert files["trainer-2.mpk.gz"].problem is None
    assert "does not list" in whole.problem


def test_path_without_records_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="missing does not exist"):
        next(verify_path(tmp_path / "missing"))
    with pytest.raises(RecordError, match=r"no record in .*: no file name ends in one of .*\.mpk\.gz, "):
        next(verify_path(tmp_path))


@pytest.mark.parametrize("suffix", [".json", ".bin"])
def test_only_a_file_that_begins_as_a_record_is_one_if_other_programs_use_its_suffix(suffix, tmp_path):
    beginning = {".json": b' { "metadata": {', ".bin": b"\x03f32\x03i"}[suffix]
    (tmp_path / f"record{suffix}").write_bytes(beginning)
    (tmp_path / f"other{suffix}").write_bytes(b" " * 300 + beginning)

    assert [verdict.name for verdict in verify_path(tmp_path)] == [str(tmp_path / f"record{suffix}")]
