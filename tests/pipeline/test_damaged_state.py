"""Files of DVC, git and ours that do not have the form they should have: one message, no traceback."""

import os
from pathlib import Path

import pytest

from pipeline.engine.lockfile_repair import is_intact_rwlock
from pipeline.lockfile import check_lockfile, is_truncated
from stages.contracts.errors import StageError

CONFLICT = "schema: '2.0'\n<<<<<<< HEAD\nstages: {}\n=======\nstages:\n>>>>>>> other\n"
FOREIGN = {
    "- a\n": "it has no schema, but is \"['a']\"",
    "word\n": "it has no schema, but is 'word'",
    "a: 1\n": "it has no schema",
    "a: [\n": "it is not valid YAML",
    "schema: '2.0'\nstages: [1]\n": "stages is '[1]', not a mapping",
    "schema: '2.0'\nstages:\n  fit: 3\n": "stages.fit is '3', not a mapping with a cmd",
    "schema: '2.0'\nstages:\n  fit: {cmd: x, outs: [1]}\n": "stages.fit.outs is '[1]'",
    "schema: '2.0'\nstages:\n  fit: {cmd: x, params: [1]}\n": "stages.fit.params is '[1]'",
    CONFLICT: "line 2 is a conflict marker of git",
}


@pytest.mark.parametrize(("text", "words"), FOREIGN.items())
def test_a_file_that_dvc_did_not_write_is_refused_and_not_repaired(tmp_path, text, words):
    path = tmp_path / "dvc.lock"
    path.write_text(text)

    with pytest.raises(StageError, match="is not a dvc.lock") as refused:
        check_lockfile(path)

    assert words in str(refused.value)
    assert "Run `git checkout" in str(refused.value)
    assert not is_truncated(path)


def test_every_beginning_of_a_dvc_lock_is_intact_or_cut(finished, tmp_path):
    whole = (finished.folder / "dvc.lock").read_bytes()
    path = tmp_path / "dvc.lock"
    for size in (*range(60), *range(60, len(whole), 97), len(whole)):
        path.write_bytes(whole[:size])

        check_lockfile(path)

        assert is_truncated(path) or size > 40, whole[:size]
    assert not is_truncated(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '{"write": []}', '{"write": {"a": 1}}', '{"read": {"a": [{}]}}']
)
def test_an_odd_list_of_writers_is_not_intact(tmp_path, text):
    path = tmp_path / "rwlock"
    path.write_text(text)

    assert not is_intact_rwlock(path)


def write(project, name, text):
    """Write *text* to the file *name*, or make a directory if *text* is None."""
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


@pytest.mark.parametrize(("command", "name", "text", "words"), REFUSED)
def test_odd_state_is_refused_with_one_message(project, command, name, text, words):
    write(project, name, text)

    done = project.learner(*command)

    assert "Traceback" not in done.text
    assert words in done.text
    assert (project.folder / name).is_dir() or (project.folder / name).read_text() == text


def test_run_replaces_an_odd_list_of_writers(finished):
    write(finished, ".dvc/tmp/rwlock", '{"write": {"a": 1}, "read": 3}')

    done = finished.learner("run")

    assert (done.code, done.err) == (0, "")


def test_resume_writes_to_params_that_are_only_comments(finished):
    comments = "# Every param has its default.\n"
    write(finished, "params.yaml", comments)

    done = finished.learner("resume", "HEAD", "--epoch", "1", "--no-run", "-S", "+fit.num_epochs=3")

    assert "Traceback" not in done.err
    assert (finished.folder / "params.yaml").read_text().startswith(comments)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_lock_of_another_user_is_reported(project):
    write(project, ".runs/lock", "")
    Path(project.folder / ".runs/lock").chmod(0)

    done = project.learner("run")

    assert (done.code, "Permission denied. If it belongs to another user" in done.err) == (1, True), done.err
