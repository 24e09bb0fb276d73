"""`learner doctor` repairs a checkout in which `dvc exp run --temp` was killed."""

import os
import signal
import subprocess
import time

import pytest
from long_tests import cases
from projects import Project
from waiting import LIMIT_SECONDS, wait_until

from pipeline.doctor import checkout
from pipeline.doctor.checkout import BACKUP, check_checkout, find_git_processes
from pipeline.doctor.diagnostics import Level
from pipeline.project import git

KILLED = """
import os, signal, sys
import dvc.utils.hydra
from dvc.cli import main
from dvc.repo.experiments.queue.base import BaseStashQueue
from scmrepo.git import Git
from scmrepo.git.stash import Stash

def kill_after(owner, name, count):
    original, calls = getattr(owner, name), []
    def call_and_kill(*arguments, **options):
        result = original(*arguments, **options)
        calls.append(name)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, call_and_kill)

def kill_at_rename(part):
    def hook(event, arguments):
        if event == "os.rename" and part in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

MOMENTS = {
    "user's changes stashed": lambda: kill_after(Stash, "push", 1),
    "HEAD detached": lambda: kill_after(Git, "checkout", 1),
    "user's changes applied": lambda: kill_after(Stash, "apply", 1),
    "object locked": lambda: kill_at_rename(".git/objects/"),
    "index locked": lambda: kill_at_rename(".git/index.lock"),
    "overrides staged": lambda: kill_after(BaseStashQueue, "_update_params", 1),
    "arguments staged": lambda: kill_after(BaseStashQueue, "_pack_args", 1),
    "experiment stashed": lambda: kill_after(BaseStashQueue, "_stash_msg", 1),
    "overrides written": lambda: kill_after(dvc.utils.hydra, "apply_overrides", 1),
    "queued": lambda: kill_after(BaseStashQueue, "_stash_exp", 1),
    "copied": lambda: kill_after(Git, "push_refspecs", 1),
}
MOMENTS[sys.argv[1]]()
main(["exp", "run", "--temp", "--name", "x", "-S", "fit.num_epochs=1"])
"""
WITH_EDITS = [
    "user's changes stashed",
    "HEAD detached",
    "user's changes applied",
    "object locked",
    "index locked",
    "overrides staged",
    "arguments staged",
    "overrides written",
]
CLEAN = ["HEAD detached", "index locked", "overrides staged", "arguments staged", "queued", "copied"]
SHORT = ["user's changes stashed", "user's changes applied", "arguments staged", "queued"]


def kill_experiment(project, moment):
    """Run an experiment that kills itself at *moment*."""
    with (project.folder / ".git/info/exclude").open("a") as ignored:
        ignored.write("killed_experiment.py\n")
    (project.folder / "killed_experiment.py").write_text(KILLED)
    done = project.fork("killed_experiment", moment)
    assert done.code == -signal.SIGKILL, done.text


def state(project):
    """Return the status with the branch, the stashes, and the files of a checkout."""
    status = project.ok("git", "status", "--porcelain=2", "--branch")
    return status, project.ok("git", "stash", "list"), project.files("params.yaml", "README.md", "stages")


def fix(project, monkeypatch):
    """Apply the fixes of the checkout as `learner doctor --fix` does, and return the diagnostics."""
    monkeypatch.chdir(project.folder)
    found = list(check_checkout())
    for each in found:
        if each.fix:
            each.fix()
    return found


@pytest.mark.parametrize("moment", cases({moment: [moment] for moment in WITH_EDITS}, SHORT))
def test_changes_of_the_user_are_restored(project, monkeypatch, moment):
    project.edit("README.md", "DVC", "D V C")
    project.ok("git", "add", "README.md")
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 7")
    before = state(project)
    kill_experiment(project, moment)

    found = fix(project, monkeypatch)

    assert {each.level for each in found} == {Level.PROBLEM}, found
    after = state(project)
    assert (after[0], after[2]) == (before[0], before[2])
    assert [line for line in after[1].splitlines() if BACKUP not in line] == []
    assert [each.message for each in check_checkout()] == ["no stale files of killed processes"]


@pytest.mark.parametrize("moment", cases({moment: [moment] for moment in CLEAN}, SHORT))
def test_checkout_without_changes_is_restored(project, monkeypatch, moment):
    before = state(project)
    kill_experiment(project, moment)

    fix(project, monkeypatch)

    after = state(project)
    assert (after[0], after[2]) == (before[0], before[2])
    assert [each.message for each in check_checkout()] == ["no stale files of killed processes"]


def test_commands_refuse_what_a_killed_experiment_has_staged_and_name_the_remedy(project, monkeypatch):
    monkeypatch.setattr(git, "STAGING_SECONDS", 0)
    kill_experiment(project, "arguments staged")

    for command in ("status", "check"):
        refused = project.call(command)
        assert refused.code == 1
        assert "a killed `dvc exp run` has left .dvc/tmp/repro.dat in git's index" in refused.err
        assert "Run `learner doctor --fix`" in refused.err

    project.call("doctor", "--fix").ok()
    assert project.call("status").code == 0


def test_commands_wait_until_an_experiment_that_starts_has_unstaged_its_arguments(project, monkeypatch):
    monkeypatch.setattr(git, "STAGING_SECONDS", LIMIT_SECONDS)
    arguments = project.folder / ".dvc/tmp/repro.dat"
    arguments.parent.mkdir(exist_ok=True)
    arguments.touch()
    project.ok("git", "add", "--force", str(arguments))
    unstage = ("sh", "-c", "sleep 0.5; git rm -q --cached .dvc/tmp/repro.dat")
    with subprocess.Popen(unstage, cwd=project.folder):
        assert project.call("status").code == 0


def test_committed_arguments_of_an_experiment_are_refused_by_every_command(project):
    kill_experiment(project, "arguments staged")
    project.ok("git", "commit", "-qam", "What was staged")

    for command in (("status",), ("doctor", "--fix")):
        refused = project.call(*command)
        assert refused.code == 1
        assert "git tracks .dvc/tmp/repro.dat" in refused.err
        assert "git rm -r --cached" in refused.err


def test_temporary_references_of_an_experiment_are_removed(project, monkeypatch):
    kill_experiment(project, "copied")
    assert project.ok("git", "for-each-ref", "refs/exps/temp")

    fix(project, monkeypatch)

    assert project.ok("git", "for-each-ref", "refs/exps/temp") == ""


def test_change_that_may_be_of_the_user_is_reported_with_a_command(project, monkeypatch):
    kill_experiment(project, "arguments staged")
    project.edit("params.yaml", "batch_size: 32", "batch_size: 16")
    before = project.files("params.yaml")

    [found] = [each for each in fix(project, monkeypatch) if "left this checkout changed" in each.message]

    assert found.fix is None
    assert "git diff params.yaml" in found.remedy
    assert project.files("params.yaml") == before


def test_stash_of_the_user_is_not_mistaken_for_one_of_dvc(project, monkeypatch):
    project.edit("README.md", "DVC", "D V C")
    an_hour_ago = f"{time.time() - 3600:.0f} +0000"
    project.ok("git", "stash", GIT_COMMITTER_DATE=an_hour_ago, GIT_AUTHOR_DATE=an_hour_ago)
    own = project.ok("git", "rev-parse", "stash@{0}")
    kill_experiment(project, "HEAD detached")

    fix(project, monkeypatch)

    assert project.ok("git", "rev-parse", "stash@{0}") == own


def test_locks_and_temporary_files_stay_while_git_runs(project, monkeypatch):
    lock = project.folder / ".git/index.lock"
    lock.touch()
    parts = [project.folder / folder / f".{'a' * 22}.tmp" for folder in ("", "artifacts")]
    for part in parts:
        part.parent.mkdir(exist_ok=True)
        part.touch()
    parts.append(project.folder / ".dvc/cache/runs/aa/empty")
    parts[-1].mkdir(parents=True)
    (parts[-1].parent / "file").touch()  # as a sync tool may leave one
    for part in parts:
        os.utime(part, (1, 1))
    shell = ["sh", "-c", "git cat-file --batch; true"]  # so that git is not a direct child of this process
    with subprocess.Popen(shell, cwd=project.folder, stdin=subprocess.PIPE) as running:
        wait_until(lambda: find_git_processes(project.folder), process=running)
        [found] = fix(project, monkeypatch)
        running.stdin.close()
    assert found.level is Level.OK
    assert all(each.exists() for each in (lock, *parts))

    levels = [each.level for each in fix(project, monkeypatch)]

    assert levels == [Level.PROBLEM, Level.WARNING]
    assert not any(each.exists() for each in (lock, *parts))


def test_locks_of_a_linked_worktree_are_removed_unless_git_runs_in_another(project, tmp_path, monkeypatch):
    """All worktrees of a repository share its references, and so their locks."""
    project.ok("git", "worktree", "add", "-q", str(tmp_path / "linked"))
    git_folder = project.folder / ".git"
    locks = [git_folder / name for name in ("index.lock", "worktrees/linked/index.lock", "refs/stash.lock")]
    for lock in locks:
        lock.touch()
        os.utime(lock, (1, 1))
    linked = Project(tmp_path / "linked", project.environment["PREFECT_HOME"])
    shell = ["sh", "-c", "git cat-file --batch; true"]
    with subprocess.Popen(shell, cwd=project.folder, stdin=subprocess.PIPE) as running:
        wait_until(lambda: find_git_processes(project.folder), process=running)
        fix(linked, monkeypatch)
        running.stdin.close()
    assert all(lock.exists() for lock in locks)

    fix(linked, monkeypatch)

    assert not any(lock.exists() for lock in locks)


def test_lock_from_before_the_clock_was_set_back_is_removed_at_once(project, monkeypatch):
    lock = project.folder / ".git/index.lock"
    lock.touch()
    os.utime(lock, (time.time() + 3600, time.time() + 3600))
    monkeypatch.setattr(checkout, "MIN_LOCK_AGE_SECONDS", 0.1)

    fix(project, monkeypatch)

    assert not lock.exists()
