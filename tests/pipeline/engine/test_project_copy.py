"""Isolated copies of a project, in real repositories."""

import subprocess
from pathlib import Path

import pytest

from pipeline.engine.project_copy import freeze, temporary_copy
from pipeline.project.git import SETTINGS_OF_A_CALL, VARIABLES_OF_A_REPOSITORY, run_git


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """Return a project of DVC in git, with one commit."""
    root = tmp_path / "project"
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc/config").touch()
    (root / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    (root / ".gitignore").write_text("/.runs\n")
    (root / "params.yaml").write_text("fit: {seed: 1}\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "The project")
    return root


def read_state(root):
    return git(root, "symbolic-ref", "HEAD"), git(root, "ls-files", "--stage"), git(root, "status", "-s")


def test_copy_made_in_a_git_hook_changes_neither_head_nor_index(repository, monkeypatch):
    (repository / "params.yaml").write_text("fit: {seed: 2}\n")
    git(repository, "add", "-A")
    (repository / "params.yaml").write_text("fit: {seed: 3}\n")
    before = read_state(repository)
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))

    with temporary_copy(freeze(repository), repository.parent / "place.copy") as folder:
        copied = (folder / "params.yaml").read_text()

    monkeypatch.undo()
    assert copied == "fit: {seed: 3}\n"
    assert read_state(repository) == before


def test_every_variable_that_names_a_repository_is_dropped():
    """The settings of `git -c` stay, as for git's submodules: CI sets safe.directory with them."""
    listed = set(run_git(Path(), "rev-parse", "--local-env-vars").split())

    assert listed <= {*VARIABLES_OF_A_REPOSITORY, *SETTINGS_OF_A_CALL}
