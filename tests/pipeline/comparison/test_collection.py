"""Runs are read from git and DVC's cache, in any folder of a repository."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.comparison.collection import collect_runs
from pipeline.revisions.files import read_revisions
from stages.contracts.errors import StageError

ROOT = Path(__file__).parents[3]
FILES = ("dvc.yaml", "params.yaml", "dvc.lock", ".dvc/config")
WHEN = "2026-03-04T05:06:07+0530"


def git(*arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    done = subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(name, content=None):
    """Commit all files, with *content* as params, and return the SHA; with *content*, HEAD does not move."""
    if content is not None:
        Path("params.yaml").write_bytes(content)
    git("add", "-A")
    git("commit", "-qm", name)
    sha = git("rev-parse", "HEAD")
    if content is not None:
        git("reset", "-q", "--hard", "HEAD~1")
    return sha


@pytest.fixture(params=["", "project"])
def head(request, tmp_path, monkeypatch):
    """Return the first commit of a project, at the root of a git repository or below it."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", WHEN)
    folder = tmp_path / request.param
    (folder / ".dvc").mkdir(parents=True)
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    if request.param:
        (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    monkeypatch.chdir(folder)
    return commit("The project")


def experiment(head, name, content):
    sha = commit(name, content)
    git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{name}", sha)
    return sha


def test_all_names_resolve_together_as_one_by_one(head):
    made = {
        name: experiment(head, name, f"fit: {{seed: {name[-1]}}}\n".encode()) for name in ("exp-1", "exp-2")
    }
    git("tag", "exp-2", head)  # git's own names come first

    found = read_revisions(["exp-1", "exp-2", "workspace", "HEAD", head[:10]])

    assert {name: files.sha for name, files in found.items()} == {
        "exp-1": made["exp-1"],
        "exp-2": head,
        "workspace": None,
        "HEAD": head,
        head[:10]: head,
    }
    assert {name: files.sha for name, files in read_revisions().items()} == {"workspace": None, **made}
    assert found["exp-1"].read_tracked("params.yaml") == {"fit": {"seed": 1}}
    assert found["exp-1"].committed.isoformat() == "2026-03-04T05:06:07+05:30"


def test_name_of_two_experiments_is_an_error(head):
    sha = experiment(head, "twice", b"{}\n")
    git("update-ref", f"refs/exps/{sha[:2]}/{sha[2:]}/twice", sha)
    git("commit", "-q", "--allow-empty", "-m", "Another baseline")

    with pytest.raises(StageError, match="ambiguous Git revision 'twice'"):
        read_revisions(["HEAD", "twice"])


@pytest.mark.parametrize("name", ["dvc.lock", "params.yaml"])
@pytest.mark.parametrize("content", [b"a: [\n", b"a: \xff\n"])
def test_error_in_a_file_of_a_commit_names_the_run(head, name, content):
    Path(name).write_bytes(content)
    sha = commit("Damage")

    with pytest.raises(StageError, match=f"run {sha[:8]}: {name} is not "):
        collect_runs([sha[:8]])


def test_run_without_a_pipeline_has_no_values(head):
    git("rm", "-q", "dvc.yaml", "dvc.lock")
    sha = commit("Without a pipeline")

    [run] = collect_runs([sha]).runs
    assert (run.metrics, run.cached, run.notes) == (
        {},
        False,
        ("nothing was run: there is no dvc.lock with params",),
    )
