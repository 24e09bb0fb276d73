"""The stores that are pruned, and stores after a prune was killed."""

import fcntl
import os
import shutil
import signal
import time
from contextlib import ExitStack, suppress

import pytest
from long_tests import long

from stages.contracts.errors import RunInUseError
from stages.runs import State, open_store, prune, prune_after_run, prune_unfinished, run_key, runs, state_of
from stages.system.file_lock import hold_lock

HOLD = """
import sys, time
from pathlib import Path
from stages.runs import open_store
with open_store(Path(sys.argv[1]), {"number": int(sys.argv[2])}) as store:
    print("ready", flush=True)
    time.sleep(60)
"""
PRUNE = """
import sys
from pathlib import Path
from stages.runs import prune
print("ready", flush=True)
prune(Path(sys.argv[1]), 0)
"""


def make(root, number, *, finished=True):
    """Make a store, and return its key; the higher the *number*, the later it was finished."""
    with open_store(root, {"number": number}) as store:
        (store.path / "checkpoint").mkdir()
        (store.path / "checkpoint/model").write_text(f"weights {number}")
        if finished:
            store.finish({"epoch": number})
            os.utime(store.path / "finished.json", (1e9 + number, 1e9 + number))
    return store.key


@pytest.mark.parametrize(("keep", "left"), [(3, [3, 4, 5]), (1, [5]), (0, []), (9, [1, 2, 3, 4, 5])])
def test_newest_finished_stores_are_kept(root, keep, left):
    keys = {number: make(root, number) for number in (4, 2, 5, 1, 3)}

    removed = prune(root, keep)

    assert set(removed) == {keys[number] for number in keys if number not in left}
    assert {run.key for run in runs(root)} == {keys[number] for number in left}
    assert {path.name for path in root.iterdir()} == {
        name for number in left for name in (keys[number], f"{keys[number]}.lock")
    }


def test_unfinished_stores_and_stores_in_use_are_kept(root, process):
    open_one, finished, other = make(root, 1, finished=False), make(root, 2), make(root, 3)
    with process(HOLD, root, 3):
        assert prune(root, 0) == [finished]
        assert prune_unfinished(root) == [open_one]
        assert [run.key for run in runs(root)] == [other]
    with open_store(root, {"number": 3}):
        assert prune(root, 0) == []
    assert prune_unfinished(root) == []
    assert prune(root, 0) == [other]


def test_running_run_counts_among_the_newest_stores(root):
    first, second = make(root, 1), make(root, 2)

    with open_store(root, {"number": 3}) as store:
        store.finish({})
        assert prune(root, 2) == [first]

    assert {run.key for run in runs(root)} == {second, store.key}


def test_run_removes_no_store_that_a_sweep_may_resume(root):
    """A rung may have more points than the stores that stay, and the better ones continue."""
    keys = [make(root, number) for number in (1, 2, 3, 4)]
    rungs = root / "sweep/0a1b.rungs"
    rungs.parent.mkdir()

    with hold_lock(rungs):
        assert prune_after_run(root, keys[0]) == []

    assert prune_after_run(root, keys[0]) == keys[1:2]


def test_directory_without_stores_is_not_changed(root):
    assert prune(root) == []
    (root / "notes").mkdir(parents=True)
    (root / "lock").touch()
    (root / "other.lock").touch()
    assert prune(root, 0) == prune_unfinished(root) == []
    assert {path.name for path in root.iterdir()} == {"notes", "lock", "other.lock"}


@pytest.mark.parametrize("every", [long(1), 5])
def test_prune_killed_at_any_operation_leaves_intact_stores_and_is_finished_by_the_next(
    every, root, tmp_path, killed_before
):
    keys = [make(root, number) for number in range(3)]
    shutil.copytree(root, tmp_path / "before")
    counts = set()

    for number in range(0, 1000 * every, every):
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "before", root)
        killed = killed_before(number, lambda: prune(root, 1))
        left = runs(root)
        counts.add(len(left))
        for run in left:
            assert {path.name for path in run.path.iterdir()} == {"key.json", "finished.json", "checkpoint"}
            assert (run.path / "checkpoint/model").read_text() == f"weights {keys.index(run.key)}"
        assert run.state is State.FINISHED or killed
        prune(root, 1)
        assert {path.name for path in root.iterdir()} == {keys[2], f"{keys[2]}.lock"}
        if not killed:
            break

    assert number > 10
    assert counts == {1, 2, 3}


def test_removed_store_stays_removed_after_a_power_failure(root, synced):
    key = make(root, 1)
    assert key in synced[root]

    prune(root, 0)

    assert key not in synced[root]


def test_removal_that_a_previous_process_began_is_finished(root):
    (root / ".trash-3f2a-0123/checkpoint").mkdir(parents=True)

    prune(root)

    assert list(root.iterdir()) == []


def test_lock_file_that_another_program_removes_first_is_no_error(root, changed_at):
    lock = root / f"{make(root, 1)}.lock"
    shutil.rmtree(lock.with_suffix(""))

    assert changed_at("os.remove", str(lock), lock.unlink, lambda: prune(root, 0) == [])


def test_prune_killed_at_random_is_finished_by_the_next(root, process):
    for trial in range(5):
        for number in range(4):
            make(root, number)
        with process(PRUNE, root) as worker:
            time.sleep(0.001 * trial)
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
        prune(root, 0)
        assert list(root.iterdir()) == []


def open_once_pruned(stack, root, key):
    """Return an opened store. On a busy machine a prune holds its lock for longer than a command waits."""
    while True:
        with suppress(RunInUseError):
            return stack.enter_context(open_store(root, key))


def test_store_opened_during_a_prune_is_intact_or_new(root, process):
    code = PRUNE.replace("prune(Path(sys.argv[1]), 0)", "while True: prune(Path(sys.argv[1]), 0)")
    with process(code, root):
        for number in range(60):
            with ExitStack() as stack:
                store = open_once_pruned(stack, root, {"number": 1})
                assert not (store.path / "finished.json").exists() or (store.path / "work").exists()
                assert not (store.path / "work").exists() or (store.path / "work").read_text() == "whole"
                (store.path / "work").write_text("whole")
                store.finish({"epoch": number})
                assert state_of(root / run_key({"number": 1})) is State.RUNNING
                assert (store.path / "work").exists()


def test_store_that_finishes_before_it_is_locked_is_kept(root, changed_at):
    key = make(root, 1, finished=False)

    def finish():
        (root / key / "finished.json").write_text("{}")

    assert changed_at("open", f"{root / key}.lock", finish, lambda: prune_unfinished(root) == [])
    assert (root / key / "checkpoint/model").exists()


def test_finished_store_that_is_resumed_before_it_is_locked_is_kept(root, changed_at):
    key = make(root, 1)

    def reopen():
        (root / key / "finished.json").unlink()

    assert changed_at("open", f"{root / key}.lock", reopen, lambda: prune(root, 0) == [])
    assert (root / key / "checkpoint/model").exists()


def test_store_removed_before_it_is_locked_is_not_reported(root, changed_at):
    key = make(root, 1)

    def remove():
        shutil.rmtree(root / key)

    assert changed_at("open", f"{root / key}.lock", remove, lambda: prune(root, 0) == [])


def test_lock_file_replaced_before_it_is_locked_is_opened_again(root, changed_at):
    lock = root / "some.lock"
    root.mkdir()

    def replace():
        lock.unlink()
        lock.touch()

    def is_exclusive():
        with hold_lock(lock), lock.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True

    assert changed_at("fcntl.flock", None, replace, is_exclusive)
