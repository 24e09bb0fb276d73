"""dvc.lock and DVC's rwlock: validation, truncation, backup and repair."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.utils.serialize import dump_yaml, modify_yaml
from waiting import LIMIT_SECONDS, wait_until

from pipeline.doctor.diagnostics import Level, run_checks
from pipeline.doctor.stale_files import check_locks
from pipeline.engine.watchdog import fork_watchdog, start_watchdog
from pipeline.project.lockfile import (
    LOCKFILE,
    RWLOCK,
    TEMPORARY,
    back_up_lockfile,
    check_lockfile,
    is_intact_lockfile,
    is_intact_rwlock,
    is_truncated,
    parse_lockfile,
    read_lockfile,
    remove_empty_entries,
    repair_lockfiles,
    try_dvc_lock,
)
from pipeline.project.revisions.dvc_checks import apply_checks
from stages.contracts.errors import StageError
from stages.runs.layout import LOCKFILE_BACKUP

INTACT = """schema: '2.0'
stages:
  fit:
    cmd: x
    deps:
    - path: a
      hash: md5
      md5: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
    params:
      params.yaml:
        fit: {epochs: 3}
    outs:
    - path: c
"""
TRUNCATED = INTACT[: INTACT.index("x\n    deps")]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with a dvc.lock and the folders for DVC's files and for the backup."""
    monkeypatch.chdir(tmp_path)
    TEMPORARY.mkdir(parents=True)
    LOCKFILE_BACKUP.parent.mkdir()
    LOCKFILE.write_text(INTACT)
    return tmp_path


def test_intact_and_missing_lockfiles_are_read(project):
    assert read_lockfile(LOCKFILE)["stages"]["fit"]["outs"] == [{"path": "c"}]
    assert read_lockfile(Path("missing")) == {}
    assert is_intact_lockfile(LOCKFILE)
    assert is_intact_lockfile(Path("missing"))
    assert not is_truncated(LOCKFILE)
    assert not is_truncated(Path("missing"))


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ("", True),
        ("\0\0\n", True),
        ("schema: '2", True),
        (TRUNCATED, True),
        (INTACT[: INTACT.index("- path: a")], True),
        (INTACT[: INTACT.index("params:")], False),
        (INTACT + "\0\0", True),
        (INTACT.rstrip("\n"), False),
        (INTACT + "  save", True),
        ("stages: {}\n", False),
        (INTACT.replace("    cmd: x\n", "<<<<<<< HEAD\n"), False),
    ],
)
def test_only_an_incomplete_lockfile_counts_as_truncated(project, text, is_cut):
    LOCKFILE.write_text(text)

    assert is_truncated(LOCKFILE) == is_cut


@pytest.mark.parametrize(("head", "is_cut"), [(b"schema: '2.0'\n", True), (b"schema: '1.0'\n", False)])
def test_undecodable_lockfile_is_refused_and_is_truncated_only_if_it_begins_like_one(project, head, is_cut):
    LOCKFILE.write_bytes(head + b"\xff\xfe")

    assert is_truncated(LOCKFILE) == is_cut
    with pytest.raises(StageError, match="dvc.lock is not a dvc.lock: .*Run `git checkout"):
        read_lockfile(LOCKFILE)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("- path: a", "- name: a", "stages.fit.deps has"),
        ("md5: b", "md5: 3  # b", "stages.fit.deps has"),
        ("md5: b", "md5: ../b", "stages.fit.deps has"),
        ("- path: c", "- 3", "stages.fit.outs has"),
        ("        fit: {epochs: 3}", "        - 3", "stages.fit.params is"),
        ("cmd: x", "kmd: x", "stages.fit is"),
        ("stages:\n", "stages: [1]\nother:\n", "stages is '[1]', not a mapping"),
        ("schema: '2.0'", "skema: 2", "it has no schema"),
        ("  fit:\n", "=======\n", "line 3 is a conflict marker"),
    ],
)
def test_invalid_entry_is_refused_with_its_position(project, old, new, problem):
    with pytest.raises(StageError, match=r"^here is not a dvc.lock: ") as caught:
        parse_lockfile(INTACT.replace(old, new), "here")

    assert problem in str(caught.value)
    LOCKFILE.write_text(INTACT.replace(old, new))
    assert not is_intact_lockfile(LOCKFILE)
    with pytest.raises(StageError, match=r"^dvc.lock is not"):
        check_lockfile(LOCKFILE)


def test_only_an_intact_lockfile_is_backed_up(project):
    back_up_lockfile()
    assert LOCKFILE_BACKUP.read_text() == INTACT

    LOCKFILE.write_text(TRUNCATED)
    back_up_lockfile()
    assert LOCKFILE_BACKUP.read_text() == INTACT

    LOCKFILE.write_text(INTACT.replace("epochs: 3", "epochs: 4"))
    back_up_lockfile()
    assert LOCKFILE_BACKUP.read_text() == LOCKFILE.read_text()

    LOCKFILE.unlink()
    back_up_lockfile()
    assert not LOCKFILE_BACKUP.exists()


@pytest.mark.parametrize("end", range(INTACT.index("hash") + 1, INTACT.index("    params")))
def test_no_cut_within_a_line_replaces_the_backup_or_leaves_a_hash_that_dvc_does_not_know(project, end):
    back_up_lockfile()
    LOCKFILE.write_text(INTACT[:end].rstrip("\n"))

    back_up_lockfile()

    assert LOCKFILE_BACKUP.read_text() == INTACT
    assert is_truncated(LOCKFILE) or "hash: md5\n" in f"{LOCKFILE.read_text()}\n"


def test_doctor_names_what_its_fix_does_with_a_truncated_lockfile(project):
    back_up_lockfile()
    LOCKFILE.write_text(TRUNCATED)
    restored = next(each for each in check_locks() if each.fix)
    LOCKFILE_BACKUP.unlink()
    removed = next(each for each in check_locks() if each.fix)

    assert "--fix` restores it from .runs/dvc.lock" in restored.remedy
    assert "Run `git checkout dvc.lock`" in removed.remedy
    assert "--fix` removes it" in removed.remedy


def test_directory_in_place_of_the_lockfile_is_a_problem(project):
    LOCKFILE.unlink()
    LOCKFILE.mkdir()

    [found] = run_checks({"locks": check_locks}, 60)["locks"]

    assert found.level is Level.PROBLEM
    assert found.message.startswith("dvc.lock is a directory, not a file. Remove it")


def test_beginning_of_the_backup_does_not_replace_it(project):
    back_up_lockfile()
    LOCKFILE.write_text(INTACT[: INTACT.index("    params:")])

    back_up_lockfile()

    assert LOCKFILE_BACKUP.read_text() == INTACT


def test_unchanged_lockfile_is_not_backed_up_again(project):
    back_up_lockfile()
    before = LOCKFILE_BACKUP.stat()

    back_up_lockfile()

    assert (LOCKFILE_BACKUP.stat().st_ino, LOCKFILE_BACKUP.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


BACK_UP = """
import os, sys
from pathlib import Path
from pipeline.project.lockfile import LOCKFILE, back_up_lockfile

text, draft = LOCKFILE.read_text(), Path(sys.argv[1])
for epochs in range(200):
    draft.write_text(text.replace("epochs: 3", f"epochs: {epochs}"))
    os.replace(draft, LOCKFILE)
    back_up_lockfile()
"""


def test_several_processes_back_up_the_lockfile_at_the_same_time(project):
    repository = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    commands = [[sys.executable, "-c", BACK_UP, f"draft-{index}"] for index in range(3)]
    processes = [subprocess.Popen(each, env=environment, stderr=subprocess.PIPE) for each in commands]
    errors = [each.communicate(timeout=LIMIT_SECONDS)[1].decode() for each in processes]

    assert errors == ["", "", ""]
    assert LOCKFILE_BACKUP.read_bytes() == LOCKFILE.read_bytes()


def test_backup_replaces_a_truncated_lockfile(project):
    back_up_lockfile()
    LOCKFILE.write_text(TRUNCATED)

    repair_lockfiles()

    assert LOCKFILE.read_text() == INTACT


@pytest.mark.parametrize("backup", [None, TRUNCATED])
def test_truncated_lockfile_without_an_intact_backup_is_removed(project, backup):
    LOCKFILE.write_text(TRUNCATED)
    if backup:
        LOCKFILE_BACKUP.write_text(backup)

    repair_lockfiles()

    assert not LOCKFILE.exists()


def test_intact_lockfile_and_one_of_another_program_stay_unchanged(project):
    back_up_lockfile()
    for text in (INTACT.replace("epochs: 3", "epochs: 4"), "stages: {}\n"):
        LOCKFILE.write_text(text)

        repair_lockfiles()

        assert LOCKFILE.read_text() == text


@pytest.mark.parametrize("lock", ["lock", "rwlock.lock"])
def test_file_that_dvc_may_be_writing_is_not_repaired(project, lock):
    LOCKFILE.write_text(TRUNCATED)
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
def test_rwlock_that_dvc_cannot_read_is_removed(project, text, is_intact):
    RWLOCK.write_text(text)

    repair_lockfiles()

    assert is_intact_rwlock(RWLOCK) or not RWLOCK.exists()
    assert RWLOCK.exists() == is_intact


@pytest.mark.parametrize("cache", ["cache", "../another cache"])
def test_empty_folders_of_the_run_cache_are_removed_unless_an_entry_follows(cache, project, monkeypatch):
    """An experiment in a copy of the project may be about to write an entry there."""
    (TEMPORARY.parent / "config.local").write_text(f"[cache]\ndir = {cache}\n")
    folders = [TEMPORARY.parent / cache / "runs/aa" / name for name in ("aab", "aac", "aad", "aae")]
    for folder in folders:
        folder.mkdir(parents=True)
    old, used, new, followed = folders
    (used / "entry").touch()
    os.utime(old, (0, 0))
    os.utime(new, (2**33, 2**33))
    monkeypatch.setattr("time.sleep", lambda _: (followed / "entry").touch())

    remove_empty_entries()

    assert sorted(new.parent.iterdir()) == [used, followed]


CHILD = "import sys, time; print('ready', flush=True); sys.stdin.read()"


def is_claimed(pid):
    """Return whether a watchdog has claimed process *pid* and still waits for its exit."""
    claim = Path(f".runs/watchdog-{pid}")
    if not claim.exists():
        return False
    with claim.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("start", [fork_watchdog, start_watchdog], ids=["fork", "program"])
def test_watchdog_repairs_the_lockfile_and_the_run_cache_after_its_process_is_killed(project, start):
    back_up_lockfile()
    entry = TEMPORARY.parent / "cache/runs/aa/aab"
    entry.mkdir(parents=True)
    watched = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    start(watched.pid)
    wait_until(lambda: is_claimed(watched.pid))
    LOCKFILE.write_text(TRUNCATED)
    start(watched.pid)  # exits at once, because the first watchdog has the claim

    assert LOCKFILE.read_text() == TRUNCATED
    os.kill(watched.pid, signal.SIGKILL)
    watched.communicate()

    wait_until(lambda: not Path(f".runs/watchdog-{watched.pid}").exists())
    assert LOCKFILE.read_text() == INTACT
    assert not entry.exists()


def test_watchdog_works_on_a_kernel_without_descriptors_of_processes(project, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    back_up_lockfile()
    watched = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    fork_watchdog(watched.pid)
    wait_until(lambda: is_claimed(watched.pid))
    LOCKFILE.write_text(TRUNCATED)

    watched.communicate()

    wait_until(lambda: not Path(f".runs/watchdog-{watched.pid}").exists())
    assert LOCKFILE.read_text() == INTACT


def test_watchdog_removes_what_dvc_has_copied_in_part(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    Path("dvc.yaml").write_text(f"vars: [{{paths: {{data: data/prepared, other: {other}/file}}}}]")
    cache = Path(".dvc/cache/files/md5/aa")
    cache.mkdir(parents=True)
    names = [*(Path(folder, "a") for folder in (".", "data", other)), cache / "b", cache / "c"]
    copies = [path.with_name(f".{path.name * 22}.tmp") for path in names]
    kept = [Path("data", name) for name in (".notes.tmp", f"{'a' * 22}.tmp", "prepared")]
    for path in copies + kept:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    os.utime(copies[-1], (0, 0))
    watched = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    fork_watchdog(watched.pid)
    wait_until(lambda: is_claimed(watched.pid))

    watched.communicate()

    wait_until(lambda: not Path(f".runs/watchdog-{watched.pid}").exists())
    assert [path.exists() for path in copies] == [True, False, True, True, False]
    assert all(path.exists() for path in kept)


def test_watchdog_keeps_copies_beside_outputs_while_dvc_runs(project):
    Path("dvc.yaml").write_text("vars: [{paths: {data: data/prepared}}]")
    copy = Path("data", f".{'a' * 22}.tmp")
    copy.parent.mkdir()
    copy.touch()

    watched = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    fork_watchdog(watched.pid)
    wait_until(lambda: is_claimed(watched.pid))

    with try_dvc_lock(TEMPORARY / "lock"):
        watched.communicate()
        wait_until(lambda: not Path(f".runs/watchdog-{watched.pid}").exists())

    assert copy.exists()


PARAMS = {
    "numbers": [1e-05, 1e-4, 0.1, 1e22, 1e300, float("inf"), -0.0, 0, 12345678901234567890, True, None],
    "texts": [
        "",
        "1",
        "1e3",
        "yes",
        "null",
        "a: b",
        " x ",
        "é😀",
        "two\nlines\n",
        "'",
        '"',
        "w" * 200,
        "d " * 80,
    ],
    "nested": {"z": [], "a": {}, "list": [[1], [{"b": 1}]]},
    "0123456789012345678901234567890e": "d41d8cd98f00b204e9800998ecf8427e.dir",
}


@pytest.mark.parametrize("comment", ["", "# edited by a user\n"])
def test_lockfile_is_written_again_with_the_bytes_of_dvc(tmp_path, monkeypatch, comment):
    """The parser in C, which drops comments, reads a dvc.lock that has none."""
    apply_checks()
    monkeypatch.chdir(tmp_path)
    dump_yaml("written.yaml", {"stages": {"fit": {"cmd": "python\nfit", "params": PARAMS}}})
    written = comment + Path("written.yaml").read_text()
    for name in ("dvc.lock", "other.yaml"):
        Path(name).write_text(written)
        with modify_yaml(name) as content:
            content["stages"]["new"] = {"params": PARAMS}

    assert Path("dvc.lock").read_text() == Path("other.yaml").read_text()
    assert Path("dvc.lock").read_text().startswith(written)
