"""The project lock: one run in a project at a time."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from long_tests import long
from waiting import LIMIT_SECONDS, wait_until

from pipeline.engine.lock import _Holder, project_lock
from pipeline.engine.params_journal import edit_params
from pipeline.project.lockfile import read_lockfile
from stages.contracts.errors import StageError
from stages.runs.layout import PROJECT_LOCK
from stages.system.file_lock import try_lock, unlock
from stages.system.processes import is_alive

ROOT = Path(__file__).parents[3]
HOLD = """
import os, sys
from pipeline.engine.lock import project_lock
with project_lock([int(pid) for pid in sys.argv[1:]]):
    print("held", flush=True)
    sys.stdin.read(1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def holder(folder):
    """Yield a function that starts a process with the lock; its arguments are the ancestors to record.

    The process releases the lock when its standard input is closed.
    """
    started = []

    def holder(*ancestors):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", HOLD, *map(str, ancestors)],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield holder
    for each in started:
        each.communicate()


def test_lock_file_names_its_holder_and_is_emptied_on_release(folder):
    with project_lock([3, 4]):
        assert PROJECT_LOCK.read_text() == f"{os.getpid()} {socket.gethostname()} 3 4"

    assert PROJECT_LOCK.read_text() == ""
    with project_lock():
        assert PROJECT_LOCK.read_text().split() == [str(os.getpid()), socket.gethostname()]


def test_lock_is_released_after_an_exception(folder):
    with pytest.raises(ValueError, match="of the block"), project_lock():
        raise ValueError("of the block")

    with project_lock():
        pass


def test_second_process_is_refused_with_the_pid_and_host_of_the_first(holder):
    other = holder()

    with pytest.raises(StageError) as refused, project_lock():
        pass

    message = str(refused.value)
    assert f"in use by pid {other.pid} on {socket.gethostname()}" in message
    assert str(PROJECT_LOCK.resolve()) in message


def test_process_waits_for_the_lock_until_its_timeout(holder):
    other = holder()
    threading.Timer(0.3, other.stdin.close).start()

    with project_lock(timeout_seconds=600):
        assert PROJECT_LOCK.read_text().startswith(f"{os.getpid()} ")
    other.wait()
    other.stdin = None


def exited_pid():
    """Return the id of a process that has exited."""
    started = subprocess.Popen([sys.executable, "-c", ""])
    started.wait()
    return started.pid


def test_process_waits_for_a_holder_whose_ancestor_has_exited(holder):
    other = holder(os.getpid(), exited_pid())
    threading.Timer(0.3, other.stdin.close).start()

    with project_lock():
        pass
    other.wait()
    other.stdin = None


@pytest.mark.parametrize(
    ("content", "is_transient", "pid"),
    [
        ("", True, "unknown"),
        ("12 elsewhere", False, "12"),
        ("{here} {host}", False, "{here}"),
        ("{exited} {host}", True, "{exited}"),
        ("{here} {host} {here}", False, "{here}"),
        ("{here} {host} {here} {exited}", True, "{here}"),
        ("{exited} elsewhere {exited}", False, "{exited}"),
    ],
)
def test_lock_is_transient_if_it_names_no_holder_or_one_that_has_exited(folder, content, is_transient, pid):
    names = {"here": os.getpid(), "exited": exited_pid(), "host": socket.gethostname()}
    (folder / "lock").write_text(content.format(**names))

    with (folder / "lock").open("a+") as file:
        found = _Holder.read(file)

    assert found.is_transient() == is_transient
    assert found.pid == pid.format(**names)


def test_process_waits_for_a_holder_that_has_emptied_the_file_to_release_it(folder):
    """A holder empties the file before it releases the lock."""
    PROJECT_LOCK.parent.mkdir()
    with PROJECT_LOCK.open("a+") as held:
        assert try_lock(held)
        threading.Timer(0.3, unlock, [held]).start()

        with project_lock():
            assert PROJECT_LOCK.read_text().startswith(f"{os.getpid()} ")


def test_child_of_the_holder_does_not_keep_the_lock(folder):
    reading, writing = os.pipe()
    with project_lock():
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        with project_lock():
            pass
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


def test_lock_file_that_cannot_be_opened_is_reported_with_a_remedy(folder):
    PROJECT_LOCK.mkdir(parents=True)

    with (
        pytest.raises(StageError, match=r"\.runs/lock cannot be opened: .*chmod -R g\+rwX .*chmod g\+s"),
        project_lock(),
    ):
        pass


def test_second_command_is_refused_with_the_holder_and_keeps_the_outputs(finished):
    before = finished.files("artifacts", "data", "dvc.lock")
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    (finished.folder / ".runs").mkdir(exist_ok=True)
    with (finished.folder / ".runs/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()} {socket.gethostname()}")
        lock.flush()

        for refused in (finished.call("run"), finished.dvc("repro", "fit")):
            assert refused.code != 0
            assert f"in use by pid {os.getpid()} on" in refused.err
            assert "Traceback" not in refused.text

    assert finished.files("artifacts/checkpoint", "artifacts/model.mpk.gz").items() <= before.items()
    finished.call("run", "load-data").ok()


@pytest.mark.parametrize(
    "command", [["repro", "--single-item", "fit"], long(["repro"]), long(["exp", "run"])], ids=" ".join
)
def test_waiting_run_edits_params_after_dvc_has_recorded_its_last_stage(finished, monkeypatch, command):
    monkeypatch.chdir(finished.folder)
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")
    dvc = finished.start_fork("dvc", *command, log=finished.folder / "log")
    in_lock = re.compile(rf"\b{dvc.pid}\b")
    wait_until(lambda: in_lock.search(PROJECT_LOCK.read_text()), Path("log").read_text, dvc)

    with (
        suppress(KeyError),
        project_lock(timeout_seconds=LIMIT_SECONDS),
        edit_params(["fit.num_epochs=9"]),
    ):
        dvc.wait()
        raise KeyError

    assert dvc.returncode == 0, Path("log").read_text()
    recorded = read_lockfile(Path("dvc.lock"))["stages"]["fit"]["params"]["params.yaml"]["fit"]
    assert recorded["num_epochs"] == json.loads(Path("artifacts/metrics.json").read_text())["epoch"] == 3


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", "{", '{"pid": null}'])
def test_file_without_a_pid_keeps_no_lock(folder, content):
    for name in ("exps/run/workspace/workspace.json", "lock"):
        (folder / ".dvc/tmp" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / ".dvc/tmp" / name).write_text(content)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with project_lock(dvc=other.pid):
            pass

        with project_lock():
            assert PROJECT_LOCK.read_text().startswith(f"{os.getpid()} ")


HOLD_FILE = """
import fcntl, pathlib, sys
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
file = path.open("w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read(1)
"""
REPRODUCE = """
import sys
from dvc.repo import Repo
with Repo() as repo:
    repo.reproduce("create-artifact-dir", force=True)
print("recorded", flush=True)
sys.stdin.read(1)
"""


def test_process_that_continues_after_its_stages_does_not_keep_the_lock(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    with subprocess.Popen(
        [sys.executable, "-c", REPRODUCE],
        env=finished.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as notebook:
        assert "recorded\n" in iter(notebook.stdout.readline, "")

        with project_lock():
            assert notebook.poll() is None
        notebook.stdin.close()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rwlock", '{{"write": {{"artifacts": {{"pid": {pid}, "cmd": "dvc repro"}}}}}}'),
        ("exps/run/workspace/workspace.json", '{{"pid": {pid}}}'),
        ("lock", " {pid}\n"),
    ],
)
def test_lock_is_kept_by_the_dvc_process_of_the_last_stage_until_that_is_killed(folder, name, content):
    dvc = subprocess.Popen(
        [sys.executable, "-c", HOLD_FILE, f".dvc/tmp/{name}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert dvc.stdout.readline() == b"held\n"
    (folder / ".dvc/tmp" / name).write_text(content.format(pid=dvc.pid))
    with project_lock(dvc=dvc.pid):
        pass

    with pytest.raises(StageError, match=f"in use by pid {dvc.pid} on"), project_lock():
        pass
    dvc.kill()
    wait_until(lambda: not is_alive(dvc.pid))
    with project_lock():
        assert PROJECT_LOCK.read_text().startswith(f"{os.getpid()} ")
    dvc.communicate()
