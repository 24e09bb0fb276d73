"""Sizes and hashes of the files of a store: listed files, damaged files, and the files of an epoch."""

import json
import shutil

import pytest

from stages.runs.continuation import first_epoch, remove_epochs_after
from stages.runs.layout import FINISHED_FILE
from stages.runs.manifest import (
    LogLedger,
    add_checksum,
    describe_store,
    find_damage,
    read_finished,
    verify_checksum,
)
from stages.system.files import UNREADABLE, describe

FILES = [
    "key.json",
    "checkpoint/model-1.mpk.gz",
    "checkpoint/trainer-1.mpk.gz",
    "checkpoint/model-2.mpk.gz",
    "checkpoint/trainer-2.mpk.gz",
    "checkpoint/model-10.mpk.gz",
    "train/epoch-1/Loss.log",
    "train/epoch-2/Loss.log",
    "train/epoch-10/Loss.log",
    "valid/epoch-1/Accuracy.log",
    "valid/epoch-2/Accuracy.log",
    "experiment.log",
]
UNLISTED = [
    "finished.json",
    "heartbeat.json",
    "logs.jsonl",
    "environment.json",
    "steps/7/model.mpk.gz",
    ".heartbeat.json.part",
    "train/.Loss.log.part",
]


@pytest.fixture
def store(tmp_path):
    """A store with three epochs."""
    for name in FILES + UNLISTED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}")
    return tmp_path


def names(store):
    return {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}


def test_checksum_detects_every_change_of_a_value():
    content = {"epoch": 3, "files": {"a": 1}}

    assert verify_checksum(add_checksum(content)) == content
    for changed in (
        {**add_checksum(content), "epoch": 4},
        {**add_checksum(content), "more": 1},
        content,
        {},
        None,
    ):
        assert verify_checksum(changed) is None


def test_finished_file_is_read(tmp_path):
    files = {"a": {"size": 1, "sha256": "0" * 64}}
    (tmp_path / FINISHED_FILE).write_text(json.dumps(add_checksum({"epoch": 3, "files": files})))

    finished = read_finished(tmp_path)

    assert (finished.facts, finished.files) == ({"epoch": 3}, files)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"epoch": 3, "files": {}},
        add_checksum({"epoch": 3}),
        {**add_checksum({"epoch": 3}), "epoch": 4},
    ],
)
def test_missing_or_corrupt_finished_file_is_read_as_none(content, tmp_path):
    assert read_finished(tmp_path) is None
    (tmp_path / FINISHED_FILE).write_text(json.dumps(content))
    assert read_finished(tmp_path) is None


def test_manifest_has_every_file_that_a_run_publishes(store):
    found = describe_store(store, {})

    assert list(found) == sorted(FILES)
    assert all(found[name] == describe(store / name) for name in FILES)


def test_recorded_entry_of_a_file_is_not_computed_again(store):
    known = {"key.json": {"size": 1, "sha256": "as written"}, "missing": {"size": 2, "sha256": "x"}}

    found = describe_store(store, known)

    assert {name: found[name] for name in known} == known
    assert set(found) == {*FILES, "missing"}


def test_damaged_files_are_listed_with_their_problems(store):
    manifest = describe_store(store, {})
    assert find_damage(store, manifest) == {}
    (store / "key.json").unlink()
    (store / "experiment.log").write_text("content of experiment.lot")

    found = find_damage(store, manifest)

    assert set(found) == {"key.json", "experiment.log"}
    assert "missing" in found["key.json"]


@pytest.mark.parametrize(
    ("listed", "epoch"),
    [
        (FILES, 1),
        (["checkpoint/model-12.mpk.gz", "valid/epoch-9/Loss.log", "key.json"], 9),
        (["key.json", "checkpoint/notes", "train/epoch-3", "test/epoch-1/Loss.log"], None),
        ([], None),
    ],
)
def test_first_epoch_is_the_lowest_with_a_listed_file(listed, epoch):
    assert first_epoch(listed) == epoch


@pytest.mark.parametrize("epoch", [0, 1, 2, 10])
def test_removal_of_later_epochs_includes_checkpoints_within_an_epoch(store, epoch):
    later = {name for name in FILES for number in (1, 2, 10) if number > epoch and f"-{number}" in name[6:]}
    kept = {
        name
        for name in FILES
        if not any(f"-{n}." in name or f"-{n}/" in name for n in (1, 2, 10) if n > epoch)
    }

    remove_epochs_after(store, epoch)

    assert names(store) == kept | set(UNLISTED) - {"steps/7/model.mpk.gz"}
    assert later or epoch == 10


def test_removed_checkpoint_of_a_step_stays_removed_after_a_power_failure(store, synced):
    remove_epochs_after(store, 1)

    assert "checkpoint" in synced[store]
    assert "steps" not in synced[store]


def test_ledger_has_the_hashes_of_the_logs_of_each_epoch(store):
    ledger = LogLedger(store)
    for epoch in (1, 2):
        ledger.add(epoch)
    (store / "train/epoch-1/Loss.log").write_text("changed")

    found = ledger.read(2)

    logs = [
        name for name in FILES if name.endswith((".log",)) and "epoch-" in name and "epoch-10" not in name
    ]
    assert set(found) == set(logs)
    assert find_damage(store, found).keys() == {"train/epoch-1/Loss.log"}
    assert set(ledger.read(1)) == {"train/epoch-1/Loss.log", "valid/epoch-1/Accuracy.log"}
    ledger.add(1)
    assert find_damage(store, ledger.read(2)) == {}


def test_epoch_without_a_ledger_line_must_have_the_logs_of_the_newest_epoch(store):
    ledger = LogLedger(store)
    ledger.add(2)
    assert set(ledger.read(2)) == {"train/epoch-2/Loss.log", "valid/epoch-2/Accuracy.log"}

    (store / "valid/epoch-1/Accuracy.log").unlink()

    assert ledger.read(2)["valid/epoch-1/Accuracy.log"] == UNREADABLE
    assert "train/epoch-2/Loss.log" in ledger.read(2)
    assert "train/epoch-1/Loss.log" not in ledger.read(2)


def test_first_epoch_without_a_line_and_a_folder_is_missing(store):
    """A file can have the name of any epoch, so that not each of the epochs up to it can be listed."""
    (store / "train/epoch-99999999999").mkdir()
    (store / "train/epoch-99999999999/Loss.log").write_text("0.5,1")

    missing = [name for name, entry in LogLedger(store).read(99_999_999_999).items() if entry == UNREADABLE]

    assert missing == ["train/epoch-3/Loss.log"]


@pytest.mark.parametrize("harm", ["cut", "changed", "not json", "not a mapping"])
def test_damaged_line_of_the_ledger_is_ignored(store, harm):
    ledger = LogLedger(store)
    ledger.add(1)
    line = (store / "logs.jsonl").read_text().splitlines()[-1]
    row = json.loads(line)
    row["epoch"] = 2
    other = {"cut": line[:-9], "changed": json.dumps(row), "not json": "{", "not a mapping": "[1]"}[harm]
    (store / "logs.jsonl").write_text(other)
    assert ledger.read(1) == {}

    ledger.add(1)

    assert set(ledger.read(1)) == {"train/epoch-1/Loss.log", "valid/epoch-1/Accuracy.log"}


def test_ledger_that_cannot_be_written_logs_a_warning(store, caplog):
    shutil.rmtree(store)

    LogLedger(store).add(3)

    assert "the logs of epoch 3 will not be verified" in caplog.text
    assert LogLedger(store).read(0) == {}
