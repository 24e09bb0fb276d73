"""The state from which a run store continues, and its return to an intact epoch."""

import shutil

import pytest

from stages.runs import Continuation, open_store
from stages.runs.manifest import LogLedger, describe_store
from stages.system.files import md5

MARKER = "learner.json"


def write(folder, *names):
    """Write files whose content is their own name; return the set of names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return set(names)


def checkpoint(epoch):
    return f"checkpoint/model-{epoch}.mpk.gz", f"checkpoint/trainer-{epoch}.mpk.gz"


def logs(epoch):
    return f"train/epoch-{epoch}/Loss.log", f"valid/epoch-{epoch}/Loss.log"


def train(store, *epochs):
    """Write the checkpoint and the logs of each of *epochs*; return the names of the files."""
    names = set()
    for epoch in epochs:
        names |= write(store.path, *checkpoint(epoch), *logs(epoch))
        LogLedger(store.path).add(epoch)
    return names


def files(store):
    return {path.relative_to(store.path).as_posix() for path in store.path.rglob("*") if path.is_file()}


@pytest.fixture
def initial(tmp_path):
    """The directory of an initial learner."""
    write(tmp_path / "learner", MARKER, *checkpoint(0))
    return tmp_path / "learner"


@pytest.fixture
def store(root):
    with open_store(root, {"number": 1}) as store:
        yield store


@pytest.fixture
def prepare(store, initial):
    """A function that prepares the store for a number of epochs."""

    def prepare(num_epochs, recorded=None):
        Continuation(store, initial, MARKER).prepare(num_epochs, recorded)

    return prepare


START = {"key.json", MARKER, *checkpoint(0)}


def finish(store, num_epochs):
    """Finish the run; return the md5 of its metrics."""
    (store.path / "metrics.json").write_text("{}")
    store.finish({"num_epochs": num_epochs, "devices": []}, describe_store(store.path, {}))
    return md5(store.path / "metrics.json")


def test_new_run_starts_from_the_initial_learner(store, prepare):
    prepare(3)

    assert files(store) == START
    assert (store.path / MARKER).read_text() == MARKER


def test_interrupted_run_resumes_at_its_newest_checkpoint(store, prepare, initial):
    prepare(3)
    trained = train(store, 1, 2)
    (initial / MARKER).write_text("rebuilt")

    prepare(3)

    assert files(store) == START | trained | {"logs.jsonl"}
    assert (store.path / MARKER).read_text() == "rebuilt"


def test_store_without_the_marker_starts_over(store, prepare):
    """The marker is written last: without it, the initial learner is incomplete."""
    prepare(3)
    train(store, 1)
    (store.path / MARKER).unlink()

    prepare(3)

    assert files(store) == START


def test_run_from_an_epoch_of_another_run_records_the_logs_of_that_epoch(store, prepare, initial):
    shutil.rmtree(initial)
    write(initial, MARKER, *checkpoint(2), *logs(1), *logs(2))

    prepare(3)

    assert LogLedger(store.path).read(2).keys() == {*logs(1), *logs(2)}


@pytest.mark.parametrize("recorded", [None, "another md5"])
def test_finished_run_that_is_not_recorded_stays_finished(store, prepare, capsys, recorded):
    prepare(1)
    train(store, 1)
    finish(store, 1)
    before = files(store)

    prepare(1, recorded)

    assert files(store) == before
    assert store.finished == {"num_epochs": 1, "devices": []}
    assert capsys.readouterr().out == f"run {store.key} is already finished: publishing its results\n"


def test_finished_run_that_is_recorded_starts_over(store, prepare):
    prepare(1)
    train(store, 1)

    prepare(1, finish(store, 1))

    assert files(store) == START


def test_finished_run_with_fewer_epochs_is_trained_further(store, prepare):
    prepare(1)
    trained = train(store, 1)
    finish(store, 1)

    prepare(2)

    assert store.finished is None
    assert files(store) == START | trained | {"metrics.json", "logs.jsonl"}


@pytest.mark.parametrize("is_finished", [True, False])
def test_run_with_more_epochs_starts_over(store, prepare, is_finished):
    prepare(3)
    train(store, 3)
    shutil.rmtree(store.path / "checkpoint")
    write(store.path, *checkpoint(3))
    if is_finished:
        finish(store, 3)

    prepare(2)

    assert files(store) == START


@pytest.mark.parametrize("is_finished", [True, False])
def test_run_returns_to_the_newest_checkpoint_before_a_damaged_file(
    store, prepare, capsys, caplog, is_finished
):
    prepare(4)
    train(store, 1, 2, 3)
    write(store.path, "steps/model-7.mpk.gz")
    if is_finished:
        finish(store, 3)
    (store.path / logs(2)[0]).write_text("changed")

    prepare(4)

    kept = START | {*checkpoint(1), *logs(1), "logs.jsonl"}
    assert files(store) - {"metrics.json"} == kept
    assert store.finished is None
    assert "1 damaged files: it is trained again after epoch 1\n" in capsys.readouterr().out
    assert f"{store.path / logs(2)[0]} has 7 bytes" in caplog.text


def test_damage_before_every_checkpoint_starts_the_run_over(store, prepare, capsys):
    prepare(2)
    train(store, 1, 2)
    for name in checkpoint(0):
        (store.path / name).unlink()
    (store.path / logs(1)[0]).unlink()

    prepare(2)

    assert files(store) == START
    assert capsys.readouterr().out.endswith("1 damaged files: it is trained again from the start\n")


def test_damaged_file_of_no_epoch_keeps_every_checkpoint(store, prepare, initial, capsys):
    prepare(2)
    trained = train(store, 1, 2)
    finish(store, 2)

    Continuation(store, initial, MARKER).repair({"metrics.json": "is missing"})

    assert trained <= files(store)
    assert store.finished is None
    assert capsys.readouterr().out.endswith("trained again after epoch 2\n")


def test_corrupt_record_of_the_finish_is_removed_and_the_run_resumes(store, prepare, caplog):
    prepare(2)
    trained = train(store, 1, 2)
    finish(store, 2)
    (store.path / "finished.json").write_text("{")

    prepare(2)

    assert files(store) == START | trained | {"metrics.json", "logs.jsonl"}
    assert f"removed the corrupt finished.json of {store.path}" in caplog.text
