"""Isolated copies of a project, in real repositories."""

import subprocess
from pathlib import Path

import pytest
from dvc.repo import Repo
from long_tests import long

from pipeline.engine.project_copy import freeze, temporary_copy
from pipeline.project.git import VARIABLES_OF_A_REPOSITORY, run_git
from pipeline.project.lockfile import LOCKFILE_BACKUP_LOCK
from pipeline.project.paths import STORES_VARIABLE
from stages.contracts.errors import ParamsError, StageError


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

    assert listed <= {*VARIABLES_OF_A_REPOSITORY, "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"}


def test_shallow_clone_with_an_edit_can_be_copied(repository):
    git(repository, "commit", "-q", "--allow-empty", "-m", "Another commit")
    shallow = repository.parent / "shallow"
    git(repository.parent, "clone", "-q", "--depth", "1", repository.as_uri(), str(shallow))
    (shallow / "params.yaml").write_text("fit: {seed: 2}\n")

    with temporary_copy(freeze(shallow), repository.parent / "place.copy") as folder:
        assert (folder / "params.yaml").read_text() == "fit: {seed: 2}\n"
        assert git(folder, "rev-list", "--count", "HEAD") == "1"


def test_copy_has_the_files_of_submodules(repository):
    nested, library = repository.parent / "nested", repository.parent / "library"
    for folder, name in ((nested, "layers.py"), (library, "net.py")):
        folder.mkdir()
        git(folder, "init", "-q")
        (folder / name).write_text("WIDTH = 8\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "A part")
    git(library, "submodule", "--quiet", "add", str(nested), "nested")
    git(library, "commit", "-qm", "A part of it")
    git(repository, "submodule", "--quiet", "add", str(library), "library")
    git(repository, "submodule", "--quiet", "update", "--init", "--recursive")
    git(repository, "commit", "-qm", "A submodule")

    with temporary_copy(freeze(repository), repository.parent / "place.copy") as folder:
        for name in ("library/net.py", "library/nested/layers.py"):
            assert (folder / name).read_text() == "WIDTH = 8\n"
        assert not git(folder, "status", "--porcelain")

    (repository / "library/nested/layers.py").write_text("WIDTH = 16\n")
    with pytest.raises(StageError, match=r"submodule library has changes .* Commit them"):
        freeze(repository)


def test_settings_of_dvc_may_have_letters_beyond_ascii(tmp_path, repository):
    root = repository.rename(tmp_path / "Prüfung №7 训练")
    (root / ".dvc/config").write_text("['remote \"store\"']\n    url = ../../speicher-ö\n")

    with temporary_copy(freeze(root), root / ".runs/place.copy") as folder, Repo(str(folder)) as repo:
        assert Path(repo.cache.local_cache_dir) == root / ".dvc/cache"
        assert repo.config["remote"]["store"]["url"] == str(tmp_path / "speicher-ö")


@pytest.mark.parametrize("variable", [None, long(STORES_VARIABLE), "DVC_ROOT"])
def test_no_watchdog_writes_in_a_copy_while_it_is_removed(project, tmp_path, variable):
    """The watchdog of a stage outlives its DVC process, and with that the point of a sweep."""
    project.edit("dvc.yaml", "cmd: python", f"cmd: {variable or 'NO_COPY'}={tmp_path} python")

    project.dvc("repro", "create-artifact-dir").ok()

    assert (project.folder / LOCKFILE_BACKUP_LOCK).exists() is (variable is None)


@pytest.mark.parametrize("name", ["a {x}", "two\nlines"])
def test_project_that_dvc_or_git_cannot_use_is_refused_before_it_is_copied(name, repository):
    root = repository.rename(repository.with_name(name))

    with pytest.raises(ParamsError, match=r"cannot use the path '.*', which contains '.*'\. Rename it"):
        freeze(root)
