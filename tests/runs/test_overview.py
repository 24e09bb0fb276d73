"""The list of stores: position, size and order of each."""

import os
from datetime import datetime
from pathlib import Path

import pytest

from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.runs import HeartbeatRenderer, State, open_store, runs
from stages.system.processes import ProcessIdentity

NOBODY = 65534


def make(root, number, age_seconds):
    """Return the path of a store that changed *age_seconds* after an arbitrary time."""
    with open_store(root, {"number": number}) as store:
        pass
    for path in (*store.path.iterdir(), store.path):
        os.utime(path, (1e9 + age_seconds, 1e9 + age_seconds))
    return store.path


def test_runs_are_listed_newest_first(root):
    paths = {age: make(root, age, age) for age in (20, 40, 10, 30)}

    found = runs(root)

    assert [run.path for run in found] == [paths[age] for age in (40, 30, 20, 10)]
    assert [run.last_change for run in found] == [1e9 + age for age in (40, 30, 20, 10)]
    assert found[0].time == datetime.fromtimestamp(1e9 + 40).astimezone()
    assert [run.entries for run in found] == [{"number": age} for age in (40, 30, 20, 10)]


def test_runs_of_equal_time_are_listed_by_key(root):
    paths = [make(root, number, 5) for number in range(4)]

    assert [run.key for run in runs(root)] == sorted(path.name for path in paths)


@pytest.mark.parametrize(
    ("split", "place"), [(Split.TRAIN, "epoch 3 step 12"), (Split.VALID, "epoch 3 valid step 12")]
)
def test_place_of_a_run_is_that_of_its_last_heartbeat(root, split, place):
    with open_store(root, {}) as store:
        assert runs(root)[0].place == ""
        HeartbeatRenderer(store.path).start(Progress(epochs=9, epoch=3, split=split, batch=12))

    (run,) = runs(root)
    assert (run.place, run.state, run.owner) == (place, State.INTERRUPTED, None)


def test_size_epochs_and_facts_of_a_run_are_read_from_its_files(root):
    with open_store(root, {}) as store:
        (before,) = runs(root)
        size = before.size
        assert (before.epochs, before.finished) == (0, None)
        (store.path / "checkpoint").mkdir()
        for name in ("trainer-2.mpk.gz", "trainer-10.mpk.gz", "model-11.mpk.gz", "trainer-12"):
            (store.path / "checkpoint" / name).write_bytes(b"12345")
        assert runs(root)[0].size == size + 4 * 5
        store.finish({"epoch": 10})

    (run,) = runs(root)
    assert (run.epochs, run.finished, run.state) == (10, {"epoch": 10}, State.FINISHED)


def test_missing_root_has_no_runs(tmp_path):
    assert runs(tmp_path / "missing") == []


@pytest.mark.parametrize("text", ["[1]", "3", "{", ""])
def test_key_file_without_a_mapping_has_no_entries(root, text):
    path = make(root, 1, 1)
    (path / "key.json").write_text(text)

    assert runs(root)[0].entries == {}


def test_owner_has_the_boot_id_of_its_machine():
    boot = Path("/proc/sys/kernel/random/boot_id")

    assert ProcessIdentity.of_this_process().boot == (boot.read_text().strip() if boot.exists() else "")


def test_running_process_of_another_user_has_not_ended():
    first = ProcessIdentity.of(1)
    is_root = os.geteuid() == 0
    if is_root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        with pytest.raises(PermissionError):
            os.kill(1, 0)
        assert not first.has_ended()
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
