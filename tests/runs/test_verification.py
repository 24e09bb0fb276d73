"""Results of a run that are verified before they are published."""

import pytest
import torch

from stages.records import NamedMpkGzFileRecorder
from stages.runs import Checkpoint, FileCheckpointer, open_store, publish_results
from stages.runs.checkpointer import results_manifest
from stages.runs.manifest import UNREADABLE, LogLedger
from stages.system.files import describe

OUTPUTS = ("checkpoint", "metrics.json")


@pytest.fixture
def store(root):
    """A finished run with one checkpoint, metrics and an untracked log."""
    with open_store(root, {"number": 1}) as store:
        saved = Checkpoint({"w": torch.ones(3)}, {}, {}, {"epoch": 1})
        FileCheckpointer(store.path / "checkpoint", NamedMpkGzFileRecorder()).save(1, saved)
        (store.path / "train/epoch-1").mkdir(parents=True)
        (store.path / "train/epoch-1/Loss.log").write_text("0.5,1\n")
        LogLedger(store.path).add(1)
        (store.path / "metrics.json").write_text("{}")
        (store.path / "experiment.log").write_text("started")
        store.finish({"epoch": 1})
        yield store


def publish(store, folder):
    """Publish the results to *folder*; return what is wrong and the names of the published files."""
    outputs = [folder / name for name in OUTPUTS]
    problems = publish_results(store, outputs, [folder / "experiment.log"])
    return problems, {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_intact_results_and_untracked_files_are_published(store, tmp_path):
    problems, published = publish(store, tmp_path / "out")

    files = {path.relative_to(store.path).as_posix() for path in (store.path / "checkpoint").iterdir()}
    assert problems == {}
    assert published == files | {"metrics.json", "experiment.log"}


@pytest.mark.parametrize("name", ["checkpoint/model-1.mpk.gz", "metrics.json"])
def test_damaged_result_is_reported_and_nothing_is_published(store, tmp_path, name):
    (store.path / name).write_text("damaged")

    problems, published = publish(store, tmp_path / "out")

    assert problems.keys() == {name}
    assert published == set()


def test_untracked_file_may_change(store, tmp_path):
    (store.path / "experiment.log").write_text("started, finished")

    problems, _ = publish(store, tmp_path / "out")

    assert problems == {}
    assert (tmp_path / "out/experiment.log").read_text() == "started, finished"


def test_manifest_has_the_hashes_recorded_when_logs_and_checkpoints_were_written(store):
    names = [f"checkpoint/{part}-1.mpk.gz" for part in ("model", "optim", "scheduler")]
    expected = {name: describe(store.path / name) for name in [*names, "train/epoch-1/Loss.log"]}

    for name in expected:
        (store.path / name).write_text("changed later")

    assert results_manifest(store.path, 1, [1]) == expected


def test_kept_epoch_without_a_readable_checkpoint_matches_no_file(store):
    (store.path / "checkpoint/trainer-1.mpk.gz").write_bytes(b"")

    found = results_manifest(store.path, 0, [3])

    assert found == {f"checkpoint/trainer-{epoch}.mpk.gz": UNREADABLE for epoch in (1, 3)}
