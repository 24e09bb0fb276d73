"""Calls of git, with real repositories."""

import subprocess

import pytest

from pipeline.project.git import commit_time, complete_history, read_objects, run_git, try_git
from stages.contracts.errors import StageError

WHEN = "2026-03-04T05:06:07+0530"
PARAMS = "fit: {seed: 1}\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository with one commit, which has the file project/params.yaml."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", WHEN)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/params.yaml").write_text(PARAMS)
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "The project"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_objects_are_in_the_order_of_their_names(repository):
    head = run_git(repository, "rev-parse", "HEAD").strip()
    path = f"{head}:project/params.yaml"

    params, missing, commit, same, unknown = read_objects(
        repository, [path, f"{head}:missing.yaml", head, path, "no such name"]
    )

    assert params.content == PARAMS.encode()
    assert (missing, unknown, same) == (None, None, params)
    assert (commit.sha, commit.kind) == (head, "commit")
    assert commit_time(commit).isoformat() == "2026-03-04T05:06:07+05:30"


def test_folder_that_is_not_a_repository_is_an_error_with_the_message_of_git(tmp_path):
    with pytest.raises(StageError, match=r"git cannot read .*not a git repository"):
        read_objects(tmp_path, ["HEAD"])


def test_failed_command_is_an_error_with_its_message(repository):
    with pytest.raises(StageError, match=r"`git rev-parse --verify` failed in .*fatal: Needed a single"):
        run_git(repository, "rev-parse", "--verify", "nowhere")

    assert try_git(repository, "rev-parse", "--verify", "--quiet", "nowhere").returncode == 1


def test_missing_git_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(StageError, match=r"git cannot be started .*Install git"):
        try_git(tmp_path, "status")


def test_shallow_clone_gets_the_history_and_the_experiments_of_its_remote(repository, tmp_path):
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    run_git(repository, *identity, "commit", "--quiet", "--allow-empty", "--message", "Another commit")
    run_git(repository, "update-ref", "refs/exps/aa/bb/exp", "HEAD")
    clones = [tmp_path / name for name in ("clone", "orphan")]
    for clone in clones:
        run_git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(clone))
    run_git(clones[1], "remote", "remove", "origin")

    complete_history(clones[0])
    complete_history(repository)

    assert run_git(clones[0], "rev-list", "HEAD") == run_git(repository, "rev-list", "HEAD")
    assert run_git(clones[0], "rev-parse", "refs/exps/aa/bb/exp") == run_git(repository, "rev-parse", "HEAD")
    with pytest.raises(StageError, match="is a shallow clone, in which DVC records no experiment"):
        complete_history(clones[1])
