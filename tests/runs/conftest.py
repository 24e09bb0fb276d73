"""Processes that use run stores, some of which are killed at a chosen operation."""

import os
import subprocess
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

import killed_processes
import pytest

ROOT = Path(__file__).parents[2]
FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fcntl.flock"}


@pytest.fixture
def root(tmp_path):
    return tmp_path / ".runs"


@pytest.fixture
def process():
    """Return a context manager that runs Python code in another process."""
    return _process


@pytest.fixture
def killed_before():
    """Return a function that runs an action in a process that is killed at one of its file operations."""
    return killed_processes.killed_before


@pytest.fixture
def changed_at():
    """Return a function that changes files in the middle of an action, as another process would."""
    return _changed_at


@pytest.fixture
def synced(monkeypatch):
    """The names in each directory at its last sync, which are those after a power failure."""
    names, sync = {}, os.fsync

    def record(handle):
        path = Path(f"/proc/self/fd/{handle}").resolve()
        if path.is_dir():
            names[path] = {each.name for each in path.iterdir()}
        sync(handle)

    monkeypatch.setattr(os, "fsync", record)
    return names


def _changed_at(event, argument, change, action):
    """Return whether *action* returned true in a process in which *change* was made at an audit event.

    It is made once, right before the first *event* of Python; with *argument*, the first that has it.
    """
    pid = os.fork()
    if pid == 0:
        made = []

        def hook(name, arguments):
            if name == event and not made and (argument is None or argument in map(str, arguments)):
                made.append(True)
                change()

        sys.addaudithook(hook)
        try:
            os._exit(0 if action() and made else 1)
        except BaseException:  # noqa: BLE001  the child must not run on as a second pytest
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


@contextmanager
def _process(code, *arguments):
    """Run *code* in another process, wait for its first line, and kill the process after the block."""
    started = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout.readline(), "it ended before it was ready"
        yield started
    finally:
        started.kill()
        started.wait()
        started.stdout.close()
