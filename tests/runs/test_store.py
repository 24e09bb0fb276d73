"""The run store: its content, its lock, and its state after a kill."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback

import pytest
from long_tests import long

from stages.contracts.errors import RunInUseError, StageError
from stages.runs import State, explain_disk_errors, open_store, run_key, state_of

ENTRIES = {"version": "1", "params": {"batch_size": 32}}
WORK = """
import sys, time
from pathlib import Path
from stages.runs import open_store
with open_store(Path(sys.argv[1]), {"version": "1", "params": {"batch_size": 32}}) as store:
    (store.path / "work").write_text("done")
    print("ready", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def test_run_reopens_its_own_store_only(root):
    with open_store(root, ENTRIES) as store:
        assert not (store.path / "checkpoint").exists()
        (store.path / "checkpoint").mkdir()

    with open_store(root, ENTRIES) as store:
        assert (store.path / "checkpoint").is_dir()
        assert json.loads((store.path / "key.json").read_text()) == store.entries == ENTRIES
    with open_store(root, {**ENTRIES, "version": "2"}) as other:
        assert not (other.path / "checkpoint").exists()
        assert other.path != store.path


def test_finished_run_has_its_progress_until_it_is_reopened(root):
    with open_store(root, ENTRIES) as store:
        assert store.finished is None
        store.finish({"num_epochs": 5, "epoch": 4})

    assert state_of(store.path) is State.FINISHED
    with open_store(root, ENTRIES) as store:
        assert store.finished == {"num_epochs": 5, "epoch": 4}
        store.reopen()
        store.reopen()
        assert store.finished is None
    assert state_of(store.path) is State.INTERRUPTED


def test_restarted_store_is_empty_and_still_locked(root):
    with open_store(root, ENTRIES) as store:
        (store.path / "deep").mkdir()
        store.finish({})

        store.restart()

        store.check_exists()

        assert [path.name for path in store.path.iterdir()] == ["key.json"]
        assert {path.name for path in root.iterdir()} == {store.key, f"{store.key}.lock"}
        with pytest.raises(RunInUseError):
            open_store(root, ENTRIES).__enter__()


def test_store_moved_to_another_name_is_rejected(root):
    with open_store(root, ENTRIES) as store:
        pass
    other = {**ENTRIES, "version": "2"}
    store.path.rename(root / run_key(other))

    with pytest.raises(StageError, match=f"is the key of run {store.key}, not of {run_key(other)}"):
        open_store(root, other).__enter__()
    with open_store(root, ENTRIES):  # and the lock is free again
        pass


def test_truncated_key_file_is_repaired(root):
    with open_store(root, ENTRIES) as store:
        (store.path / "key.json").write_text("{")

    with open_store(root, ENTRIES) as store:
        assert json.loads((store.path / "key.json").read_text()) == ENTRIES


@pytest.mark.skipif(os.geteuid() == 0 and sys.platform == "darwin", reason="another message")
def test_root_that_cannot_be_created_is_a_stage_error(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StageError, match=r"the run store .* cannot be used: (Not a directory|File exists)"):
        open_store(tmp_path / "file", ENTRIES).__enter__()


def test_store_opens_once_at_a_time_in_one_process(root):
    with open_store(root, ENTRIES):
        with pytest.raises(RunInUseError, match=f"in use by pid {os.getpid()}, host {socket.gethostname()}"):
            open_store(root, ENTRIES).__enter__()
        with open_store(root, {**ENTRIES, "version": "2"}):
            pass
    with open_store(root, ENTRIES):
        pass


def test_interrupted_attempt_releases_the_store(root):
    with pytest.raises(KeyboardInterrupt), open_store(root, ENTRIES):
        raise KeyboardInterrupt

    with open_store(root, ENTRIES) as store:
        pass
    assert state_of(store.path) is State.INTERRUPTED


def test_store_in_use_names_its_process_and_is_released_when_it_is_killed(root, process):
    path = root / run_key(ENTRIES)
    with process(WORK, root, 60) as worker:
        assert state_of(path) is State.RUNNING
        with pytest.raises(RunInUseError, match=f"in use by pid {worker.pid}, host "):
            open_store(root, ENTRIES).__enter__()
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()

        assert state_of(path) is State.KILLED
        with open_store(root, ENTRIES) as store:
            assert (store.path / "work").read_text() == "done"
    assert state_of(path) is State.INTERRUPTED


def test_one_of_several_processes_opens_the_store_and_the_others_name_it(root, process):
    with process(WORK, root, 60) as first:
        code = WORK.replace("print(", "print('second'); print(")
        others = [
            subprocess.run(
                [sys.executable, "-c", code, root, "0"], capture_output=True, text=True, check=False
            )
            for _ in range(3)
        ]

    assert all(f"in use by pid {first.pid}" in other.stderr for other in others)
    assert all("second" not in other.stdout for other in others)


def test_listing_runs_does_not_prevent_a_run_from_starting(root, process):
    look = """
import sys
from pathlib import Path
from stages.runs import runs
print("ready", flush=True)
while True:
    runs(Path(sys.argv[1]))
"""
    with process(look, root):
        for _ in range(200):
            with open_store(root, ENTRIES):
                pass


def test_child_processes_do_not_keep_the_lock_of_a_killed_run(root):
    code = WORK.replace(
        "import sys, time",
        "import multiprocessing, os, sys, time\n"
        "child = lambda: print(os.getpid(), flush=True) or time.sleep(600)",
    ).replace(
        'print("ready", flush=True)', 'multiprocessing.get_context("fork").Process(target=child).start()'
    )
    started = subprocess.Popen([sys.executable, "-c", code, root, "60"], stdout=subprocess.PIPE, text=True)
    child = int(started.stdout.readline())
    try:
        assert state_of(root / run_key(ENTRIES)) is State.RUNNING
        started.kill()
        started.wait()

        assert not os.kill(child, 0)
        with open_store(root, ENTRIES):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        started.stdout.close()


def test_child_process_that_exits_does_not_release_the_store_of_its_parent(root, tmp_path):
    with open_store(root, ENTRIES) as store:
        fork, seen = multiprocessing.get_context("fork"), tmp_path / "seen"
        child = fork.Process(target=_look_and_leave, args=(store.path, seen))
        child.start()
        child.join()

        assert seen.read_text() == "in use"
        look = (
            "import sys, pathlib as p; from stages.runs import state_of; print(state_of(p.Path(sys.argv[1])))"
        )
        other = subprocess.run(
            [sys.executable, "-c", look, store.path], capture_output=True, text=True, check=True
        )
        assert other.stdout.strip() == "running"


@pytest.mark.parametrize("every", [long(1), 7])
def test_restart_killed_at_any_operation_leaves_the_store_unchanged_or_empty(
    every, root, tmp_path, killed_before
):
    with open_store(root, ENTRIES) as store:
        for number in range(3):
            (store.path / f"step-{number}").mkdir()
            (store.path / f"step-{number}/state").write_text("whole")
    shutil.copytree(root, tmp_path / "before")
    whole = _files(store.path)
    seen = set()

    for number in range(0, 1000 * every, every):
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "before", root)
        killed = killed_before(number, lambda: _restart(root))
        with open_store(root, ENTRIES) as after:
            found = _files(after.path)
            seen.add("whole" if found == whole else "empty")
            assert found in (whole, {"key.json": whole["key.json"]})
        if not killed:
            break

    assert number > 10
    assert seen == {"empty", "whole"}


@pytest.mark.parametrize("every", [long(1), 7])
def test_store_opens_after_a_kill_at_any_operation_of_its_first_use(every, root, killed_before):
    for number in range(0, 1000 * every, every):
        killed = killed_before(number, lambda: _use(root))
        with open_store(root, ENTRIES) as store:
            assert store.finished in (None, {"epoch": 1}, {"epoch": 2})
            assert (store.path / "key.json").exists()
        assert state_of(store.path) in (State.INTERRUPTED, State.FINISHED)
        shutil.rmtree(root)
        if not killed:
            break

    assert number > 10


def test_store_opens_after_repeated_kills_at_random(root, process):
    code = WORK.replace("    time.sleep", "    while True: store.restart()\n    time.sleep")
    for trial in range(10):
        with process(code, root, 60) as worker:
            time.sleep(0.003 * trial)
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()

            assert worker.returncode == -signal.SIGKILL
            with open_store(root, ENTRIES) as store:
                assert store.path.is_dir()
            assert state_of(store.path) is State.INTERRUPTED


def _restart(root):
    with open_store(root, ENTRIES) as store:
        store.restart()


def _use(root):
    with open_store(root, ENTRIES) as store:
        store.finish({"epoch": 1})
        store.reopen()
        store.finish({"epoch": 2})


def _look_and_leave(path, seen):
    try:
        assert state_of(path) is State.RUNNING
        with pytest.raises(RunInUseError):
            open_store(path.parent, ENTRIES).__enter__()
        seen.write_text("in use")
    except BaseException:
        seen.write_text(traceback.format_exc())
        raise


def _files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_broken_pipe_is_not_an_error_of_the_run_store(tmp_path):
    error = BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    block = explain_disk_errors(tmp_path)
    block.__enter__()

    with pytest.raises(StageError, match="^a pipe, such as standard output: Broken pipe"):
        block.__exit__(BrokenPipeError, error, None)  # without a frame of this file, which is a user's
