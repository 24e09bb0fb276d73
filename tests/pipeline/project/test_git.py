"""Calls of git, with real repositories."""

import subprocess

import pytest

from pipeline.project.git import refuse_bare_repositories, run_git, try_git
from pipeline.project.revisions.names import commit_time, read_objects
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

    assert params.data == PARAMS.encode()
    assert (missing, unknown, same) == (None, None, params)
    assert (str(commit.id), commit.type_str) == (head, "commit")
    assert commit_time(commit).isoformat() == "2026-03-04T05:06:07+05:30"


def test_folder_that_is_not_a_repository_is_an_error(tmp_path):
    with pytest.raises(StageError, match=r"git cannot read .*Repository not found"):
        read_objects(tmp_path, ["HEAD"])


def test_failed_command_is_an_error_with_its_message(repository):
    with pytest.raises(StageError, match=r"`git rev-parse --verify` failed in .*fatal: Needed a single"):
        run_git(repository, "rev-parse", "--verify", "nowhere")

    assert try_git(repository, "rev-parse", "--verify", "--quiet", "nowhere").returncode == 1


def test_missing_git_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(StageError, match=r"git cannot be started .*Install git"):
        try_git(tmp_path, "status")


def test_link_in_a_commit_is_the_file_that_it_leads_to(repository):
    (repository / "project/base.yaml").write_text(PARAMS)
    for name, target in {"linked": "base.yaml", "outside": "../../x.yaml", "broken": "missing.yaml"}.items():
        (repository / f"project/{name}.yaml").symlink_to(target)
    run_git(repository, "add", "-A")
    tree = run_git(repository, "write-tree").strip()

    names = [f"{tree}:{name}.yaml" for name in ("outside", "linked", "broken", "base")]
    outside, linked, broken, base = read_objects(repository / "project", names)

    assert (outside, broken) == (None, None)
    assert linked == base


def test_settings_of_git_in_the_environment_stay():
    environment = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }

    refuse_bare_repositories(environment)
    refuse_bare_repositories(environment)

    assert environment["GIT_CONFIG_COUNT"] == "2"
    assert environment["GIT_CONFIG_KEY_0"] == "safe.directory"
    assert environment["GIT_CONFIG_KEY_1"] == "safe.bareRepository"
