"""The lock of a project, in this process and against another one."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.engine.lock import _Holder, project_lock
from stages.contracts.errors import StageError
from stages.runs.layout import PROJECT_LOCK

ROOT = Path(__file__).parents[2]
HOLD = """
import os, sys
from pipeline.engine.lock import project_lock
with project_lock([int(pid) for pid in sys.argv[1:]]):
    print("held", flush=True)
    sys.stdin.read(1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def holder(folder):
    """Another process that has the lock until its input ends; it names other processes as its ancestors."""
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


def test_the_lock_file_names_its_holder_and_is_empty_afterwards(folder):
    with project_lock([3, 4]):
        assert PROJECT_LOCK.read_text() == f"{os.getpid()} {socket.gethostname()} 3 4"

    assert PROJECT_LOCK.read_text() == ""
    with project_lock():
        assert PROJECT_LOCK.read_text().split() == [str(os.getpid()), socket.gethostname()]


def test_the_lock_is_released_after_an_exception(folder):
    with pytest.raises(ValueError, match="ours"), project_lock():
        raise ValueError("ours")

    with project_lock():
        pass


def test_a_second_process_is_refused_with_pid_and_host(holder):
    other = holder()

    with pytest.raises(StageError) as refused, project_lock():
        pass

    said = str(refused.value)
    assert f"in use by pid {other.pid} on {socket.gethostname()}" in said
    assert str(PROJECT_LOCK.resolve()) in said


def test_a_process_waits_as_long_as_its_patience(holder):
    other = holder()
    threading.Timer(0.3, other.stdin.close).start()

    with project_lock(timeout_seconds=600):
        assert PROJECT_LOCK.read_text().startswith(f"{os.getpid()} ")
    other.wait()
    other.stdin = None


def finished_process():
    started = subprocess.Popen([sys.executable, "-c", ""])
    started.wait()
    return started.pid


def test_a_holder_whose_starter_has_exited_is_given_time_to_leave(holder):
    other = holder(os.getpid(), finished_process())
    threading.Timer(0.3, other.stdin.close).start()

    with project_lock():
        pass
    other.wait()
    other.stdin = None


@pytest.mark.parametrize(
    ("content", "is_exiting", "pid"),
    [
        ("", False, "unknown"),
        ("12 elsewhere", False, "12"),
        ("{here} {host}", False, "{here}"),
        ("{gone} {host}", True, "{gone}"),
        ("{here} {host} {here}", False, "{here}"),
        ("{here} {host} {here} {gone}", True, "{here}"),
        ("{gone} elsewhere {gone}", False, "{gone}"),
    ],
)
def test_a_holder_is_leaving_if_it_or_a_starter_has_exited(folder, content, is_exiting, pid):
    names = {"here": os.getpid(), "gone": finished_process(), "host": socket.gethostname()}
    (folder / "lock").write_text(content.format(**names))

    with (folder / "lock").open("a+") as file:
        found = _Holder.read(file)

    assert found.is_exiting() == is_exiting
    assert found.pid == pid.format(**names)


def test_a_worker_of_the_holder_does_not_keep_the_lock(folder):
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


def test_a_lock_file_that_cannot_be_opened_is_reported_with_a_remedy(folder):
    PROJECT_LOCK.mkdir(parents=True)

    with (
        pytest.raises(StageError, match=r"\.runs/lock cannot be opened: .*chmod -R a\+rwX"),
        project_lock(),
    ):
        pass
