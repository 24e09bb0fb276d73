"""dvc.lock and DVC's list of writers: intact, cut short, kept and repaired."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.engine.lockfile_repair import (
    LOCKFILE,
    RWLOCK,
    TEMPORARY,
    back_up_lockfile,
    is_intact_lockfile,
    is_intact_rwlock,
    repair_lockfiles,
    try_dvc_lock,
)
from pipeline.engine.watchdog import fork_watchdog, start_watchdog
from pipeline.lockfile import check_lockfile, is_truncated, parse_lockfile, read_lockfile
from stages.contracts.errors import StageError
from stages.runs.layout import LOCKFILE_BACKUP

WHOLE = """schema: '2.0'
stages:
  fit:
    cmd: x
    deps:
    - path: a
      md5: b
    params:
      params.yaml:
        fit: {epochs: 3}
    outs:
    - path: c
"""
CUT = WHOLE[: WHOLE.index("x\n    deps")]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with a dvc.lock and the folders that DVC and we write to."""
    monkeypatch.chdir(tmp_path)
    TEMPORARY.mkdir(parents=True)
    LOCKFILE_BACKUP.parent.mkdir()
    LOCKFILE.write_text(WHOLE)
    return tmp_path


def test_an_intact_lock_is_read(project):
    assert read_lockfile(LOCKFILE)["stages"]["fit"]["outs"] == [{"path": "c"}]
    assert read_lockfile(Path("missing")) == {}
    assert is_intact_lockfile(LOCKFILE)
    assert is_intact_lockfile(Path("missing"))
    assert not is_truncated(LOCKFILE)
    assert not is_truncated(Path("missing"))


@pytest.mark.parametrize(
    ("text", "is_cut_short"),
    [
        ("", True),
        ("\0\0\n", True),
        ("schema: '2", True),
        (CUT, True),
        (WHOLE[: WHOLE.index("- path: a")], True),
        (WHOLE[: WHOLE.index("params:")], False),
        (WHOLE + "\0\0", True),
        (WHOLE.rstrip("\n"), False),
        (WHOLE + "  save", True),
        ("stages: {}\n", False),
        (WHOLE.replace("    cmd: x\n", "<<<<<<< HEAD\n"), False),
    ],
)
def test_only_the_beginning_of_a_lock_is_cut(project, text, is_cut_short):
    LOCKFILE.write_text(text)

    assert is_truncated(LOCKFILE) == is_cut_short


@pytest.mark.parametrize(("head", "is_cut_short"), [(b"schema: '2.0'\n", True), (b"schema: '1.0'\n", False)])
def test_a_lock_that_is_not_text_is_cut_if_it_begins_as_one(project, head, is_cut_short):
    LOCKFILE.write_bytes(head + b"\xff\xfe")

    assert is_truncated(LOCKFILE) == is_cut_short
    with pytest.raises(StageError, match="dvc.lock is not a dvc.lock: .*Run `git checkout"):
        read_lockfile(LOCKFILE)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("- path: a", "- name: a", "stages.fit.deps is"),
        ("md5: b", "md5: 3", "stages.fit.deps is"),
        ("- path: c", "- 3", "stages.fit.outs is"),
        ("        fit: {epochs: 3}", "        - 3", "stages.fit.params is"),
        ("cmd: x", "kmd: x", "stages.fit is"),
        ("stages:\n", "stages: [1]\nother:\n", "stages is '[1]', not a mapping"),
        ("schema: '2.0'", "skema: 2", "it has no schema"),
        ("  fit:\n", "=======\n", "line 3 is a conflict marker"),
    ],
)
def test_a_lock_with_a_wrong_entry_is_refused_with_its_place(project, old, new, problem):
    with pytest.raises(StageError, match=r"^here is not a dvc.lock: ") as caught:
        parse_lockfile(WHOLE.replace(old, new), "here")

    assert problem in str(caught.value)
    LOCKFILE.write_text(WHOLE.replace(old, new))
    assert not is_intact_lockfile(LOCKFILE)
    with pytest.raises(StageError, match=r"^dvc.lock is not"):
        check_lockfile(LOCKFILE)


def test_an_intact_lock_is_kept_and_a_cut_one_is_not(project):
    back_up_lockfile()
    assert LOCKFILE_BACKUP.read_text() == WHOLE

    LOCKFILE.write_text(CUT)
    back_up_lockfile()
    assert LOCKFILE_BACKUP.read_text() == WHOLE

    LOCKFILE.write_text(WHOLE.replace("epochs: 3", "epochs: 4"))
    back_up_lockfile()
    assert LOCKFILE_BACKUP.read_text() == LOCKFILE.read_text()

    LOCKFILE.unlink()
    back_up_lockfile()
    assert not LOCKFILE_BACKUP.exists()


def test_a_lock_that_is_kept_already_is_not_written_again(project):
    back_up_lockfile()
    before = LOCKFILE_BACKUP.stat()

    back_up_lockfile()

    assert (LOCKFILE_BACKUP.stat().st_ino, LOCKFILE_BACKUP.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_a_cut_lock_gives_way_to_the_kept_one(project):
    back_up_lockfile()
    LOCKFILE.write_text(CUT)

    repair_lockfiles()

    assert LOCKFILE.read_text() == WHOLE


@pytest.mark.parametrize("kept", [None, CUT])
def test_a_cut_lock_without_an_intact_copy_is_removed(project, kept):
    LOCKFILE.write_text(CUT)
    if kept:
        LOCKFILE_BACKUP.write_text(kept)

    repair_lockfiles()

    assert not LOCKFILE.exists()


def test_an_intact_lock_and_one_of_another_program_are_left_alone(project):
    back_up_lockfile()
    for text in (WHOLE.replace("epochs: 3", "epochs: 4"), "stages: {}\n"):
        LOCKFILE.write_text(text)

        repair_lockfiles()

        assert LOCKFILE.read_text() == text


@pytest.mark.parametrize("lock", ["lock", "rwlock.lock"])
def test_what_dvc_may_be_writing_is_not_repaired(project, lock):
    LOCKFILE.write_text(CUT)
    RWLOCK.write_text("{")
    with try_dvc_lock(TEMPORARY / lock) as is_free:
        assert is_free
        with try_dvc_lock(TEMPORARY / lock) as is_free_again:
            assert not is_free_again

        repair_lockfiles()

    assert LOCKFILE.exists() == (lock == "lock")
    assert RWLOCK.exists() == (lock == "rwlock.lock")


@pytest.mark.parametrize(
    ("text", "is_intact"),
    [
        ("{}", True),
        ('{"write": {"a": {"pid": 1, "cmd": "x"}}}', True),
        ('{"read": {"a": [{"pid": 1, "cmd": "x"}]}}', True),
        ('{"write": {"a": {"pid": 0, "cmd": "x"}}}', False),
        ('{"write": {"a": {"pid": 1, "cmd": ""}}}', False),
        ('{"write": {"a": {"cmd": "x"}}}', False),
        ('{"read": {"a": [{"pid": 1}]}}', False),
        ('{"read": {"a": [{"pid": 1, "cmd": "x"}], "b": [{}]}}', False),
        ('{"rea', False),
    ],
)
def test_a_list_of_writers_is_removed_unless_dvc_can_read_it(project, text, is_intact):
    RWLOCK.write_text(text)

    repair_lockfiles()

    assert is_intact_rwlock(RWLOCK) or not RWLOCK.exists()
    assert RWLOCK.exists() == is_intact


CHILD = "import sys, time; print('ready', flush=True); sys.stdin.read()"


def is_claimed(pid):
    """Return whether a watchdog of process *pid* waits, or has waited."""
    claim = Path(f".runs/watchdog-{pid}")
    if not claim.exists():
        return False
    with claim.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_until(condition):
    """Wait for *condition*, for as long as a busy machine may need."""
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("start", [fork_watchdog, start_watchdog], ids=["forked", "program"])
def test_a_watchdog_repairs_the_lock_when_the_process_has_exited(project, start):
    back_up_lockfile()
    watched = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    start(watched.pid)
    wait_until(lambda: is_claimed(watched.pid))
    LOCKFILE.write_text(CUT)
    start(watched.pid)  # a second one exits at once, since the first has the claim

    assert LOCKFILE.read_text() == CUT
    os.kill(watched.pid, signal.SIGKILL)
    watched.communicate()

    wait_until(lambda: not Path(f".runs/watchdog-{watched.pid}").exists())
    assert LOCKFILE.read_text() == WHOLE
