"""Malformed files of DVC and of this project: each is refused with one message, or replaced."""

import os
from pathlib import Path

import pytest

from pipeline.project.lockfile import check_lockfile, is_intact_rwlock, is_truncated
from stages.contracts.errors import StageError

CONFLICT = "schema: '2.0'\n<<<<<<< HEAD\nstages: {}\n=======\nstages:\n>>>>>>> other\n"
FOREIGN = {
    "- a\n": "it has no schema, but is \"['a']\"",
    "word\n": "it has no schema, but is 'word'",
    "a: 1\n": "it has no schema",
    "a: [\n": "it is not valid YAML",
    "schema: '2.0'\nstages: [1]\n": "stages is '[1]', not a mapping",
    "schema: '2.0'\nstages:\n  fit: 3\n": "stages.fit is '3', not a mapping with a cmd",
    "schema: '2.0'\nstages:\n  fit: {cmd: x, outs: [1]}\n": "stages.fit.outs has '1', not a path",
    "schema: '2.0'\nstages:\n  fit: {cmd: x, params: [1]}\n": "stages.fit.params is '[1]'",
    CONFLICT: "line 2 is a conflict marker of git",
}


@pytest.mark.parametrize(("text", "message"), FOREIGN.items())
def test_file_that_dvc_did_not_write_is_refused_and_not_repaired(tmp_path, text, message):
    path = tmp_path / "dvc.lock"
    path.write_text(text)

    with pytest.raises(StageError, match="is not a dvc.lock") as refused:
        check_lockfile(path)

    assert message in str(refused.value)
    assert "Run `git checkout" in str(refused.value)
    assert not is_truncated(path)


def test_each_prefix_of_a_lockfile_is_intact_or_truncated(finished, tmp_path):
    content = (finished.folder / "dvc.lock").read_bytes()
    path = tmp_path / "dvc.lock"
    for size in (*range(60), *range(60, len(content), 97), len(content)):
        path.write_bytes(content[:size])

        check_lockfile(path)

        assert is_truncated(path) or size > 40, content[:size]
    assert not is_truncated(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '{"write": []}', '{"write": {"a": 1}}', '{"read": {"a": [{}]}}']
)
def test_malformed_rwlock_is_not_intact(tmp_path, text):
    path = tmp_path / "rwlock"
    path.write_text(text)

    assert not is_intact_rwlock(path)


def write(project, name, text):
    """Write *text* to the file *name*, or create a directory of that name if *text* is None."""
    path = project.folder / name
    if text is None:
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


REFUSED = [
    (["run"], "dvc.lock", CONFLICT, "line 2 is a conflict marker of git"),
    (["status"], "dvc.lock", "- a\n", "dvc.lock is not a dvc.lock"),
    (["compare"], "dvc.lock", "schema: '2.0'\nstages: [1]\n", "stages is '[1]', not a mapping"),
    (["run"], ".runs/lock", None, ".runs/lock cannot be opened: Is a directory. If it belongs to another"),
]


@pytest.mark.parametrize(("command", "name", "text", "message"), REFUSED)
def test_malformed_file_is_refused_without_a_traceback_and_stays_unchanged(
    project, command, name, text, message
):
    write(project, name, text)

    done = project.call(*command)

    assert "Traceback" not in done.text
    assert message in done.text
    assert (project.folder / name).is_dir() or (project.folder / name).read_text() == text


def test_run_replaces_a_malformed_rwlock(finished):
    write(finished, ".dvc/tmp/rwlock", '{"write": {"a": 1}, "read": 3}')

    done = finished.call("run")

    assert (done.code, done.err) == (0, "")


def test_resume_keeps_the_comments_of_params_without_keys(finished):
    comments = "# Every param has its default.\n"
    write(finished, "params.yaml", comments)

    done = finished.call("resume", "HEAD", "--epoch", "1", "--no-run", "-S", "fit.num_epochs=3")

    assert done.code == 0, done.text
    assert (finished.folder / "params.yaml").read_text().startswith(comments)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can open every file")
def test_unreadable_project_lock_is_reported(project):
    write(project, ".runs/lock", "")
    Path(project.folder / ".runs/lock").chmod(0)

    done = project.call("run")

    assert (done.code, "Permission denied. If it belongs to another user" in done.err) == (1, True), done.err
