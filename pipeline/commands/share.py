"""The commands ``learner push`` and ``learner pull``, which print and run commands of DVC."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import flag
from pipeline.git import try_git
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.printing import print_line

if TYPE_CHECKING:
    from pipeline.revisions.files import RevisionFiles

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[EXPERIMENT]...",
        help="Names of experiments to transfer.",
        show_default="outputs, run-cache and all experiments",
    ),
]
Remote = Annotated[
    str | None,
    typer.Option("--remote", "-r", help="Name of the DVC remote.", show_default="the default remote"),
]
GitRemote = Annotated[
    str | None,
    typer.Option(
        "--git-remote",
        help="Name or URL of the git remote of experiments.",
        show_default="origin, or the only remote",
    ),
]

DAMAGE_REMEDY = (
    "Damaged files were removed from the cache before they were checked out. Run the same command again. If "
    "the problem stays, the remote has damaged files: push them from a clone in which "
    "`learner doctor --deep` finds none"
)
EXPERIMENT_REMOTE = (
    ". DVC reads the remotes of an experiment from .dvc/config of its commit: if the remote is newer, run "
    "`dvc remote add --local NAME URL`, which applies to all commits"
)
"""Addition to the message of a command for experiments that names a remote."""


def push(
    experiments: Names = None,
    *,
    remote: Remote = None,
    git_remote: GitRemote = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print what would be pushed, and push nothing.")] = False,
) -> None:
    """Push outputs, the run-cache and experiments to the remotes.

    The experiments that git's remote receives are printed first. Commits are not pushed: use `git push` for
    them.

    Example: learner push big longer --remote store
    """
    target = choose_git_remote(list_git_remotes(), git_remote, experiments or ())
    _check_remote(remote)
    if target:
        _print_experiments(experiments or (), target)
    for command in push_commands(experiments or (), remote, target):
        if dry_run:
            print_line(f"$ {' '.join(command)}")
        else:
            _run(command)
    if not (dry_run or experiments):
        _check_pushed(remote)


def pull(experiments: Names = None, *, remote: Remote = None, git_remote: GitRemote = None) -> None:
    """Pull the outputs of this commit, the run-cache and experiments from the remotes, and verify them.

    Outputs are checked out after they are verified.

    `dvc repro` runs the code of a pulled experiment: read it first.

    Example: learner pull big
    """
    source = choose_git_remote(list_git_remotes(), git_remote, experiments or ())
    own = _remote_option(remote)
    if not experiments:
        from pipeline.revisions.verification import check_outputs

        check_outputs()  # the names of objects, before DVC writes to them
        _run(["dvc", "fetch", "--run-cache", *own])
        check_outputs()  # the lists of files, which have been fetched
        _verify_workspace()
        _run(["dvc", "checkout"])
    if source:
        _run(["dvc", "exp", "pull", *own, *_scope(experiments), source, *(experiments or ())])
        _verify_experiments(experiments)


def push_commands(experiments: Sequence[str], remote: str | None, git_remote: str | None) -> list[list[str]]:
    """Return the commands that push *experiments*, or the outputs of this commit and all experiments."""
    own = _remote_option(remote)
    commands = [] if experiments else [["dvc", "push", "--run-cache", *own]]
    if git_remote:
        commands.append(["dvc", "exp", "push", *own, *_scope(experiments), git_remote, *experiments])
    return commands


def choose_git_remote(remotes: Sequence[str], name: str | None, experiments: Sequence[str]) -> str | None:
    """Return the git remote of experiments: *name*, else origin, else the only one of *remotes*, else None.

    Raises `ParamsError` for an unknown *name*, and without a remote if *experiments* names some.
    """
    if name:
        if name not in remotes and not re.search("[/:]", name):  # a path or a URL
            listed = ", ".join(remotes) or "none"
            raise ParamsError(f"git has no remote {name!r}; found: {listed}. Set --git-remote to one of them")
        return name
    if "origin" in remotes:
        return "origin"
    if len(remotes) == 1:
        return remotes[0]
    if experiments:
        raise ParamsError(
            "experiments are git commits, and no git remote is selected; "
            f"found remotes: {', '.join(remotes) or 'none'}. Run `git remote add origin URL`, or set "
            "--git-remote to a name or a URL"
        )
    return None


def list_git_remotes() -> list[str]:
    """Return the git remotes of this project; empty if it is not a git repository."""
    try:
        return try_git(Path(), "remote").stdout.split()
    except StageError:  # git is missing
        return []


def _check_remote(name: str | None) -> None:
    """Raise `ParamsError` if DVC has no remote *name*; None is the default one."""
    from pipeline.revisions.names import list_remotes

    if name and name not in (remotes := list_remotes()):
        listed = ", ".join(remotes) or "none"
        raise ParamsError(f"DVC has no remote {name!r}; found: {listed}. Run `dvc remote add {name} URL`")


def _check_pushed(remote: str | None) -> None:
    """Raise `StageError` if the cache and the remote lack an output, of which `dvc push` only warns."""
    from pipeline.engine.dvc_process import build_command

    command = build_command(["status", "--cloud", "--json", *_remote_option(remote)])
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)  # noqa: S603  DVC, of this environment
    if done.returncode:
        raise StageError("`dvc status --cloud` failed, so what was pushed is not verified. Push again")
    missing = sorted(path for path, state in json.loads(done.stdout).items() if state == "missing")
    if missing:
        raise StageError(
            f"neither the cache nor the remote has {len(missing)} of the outputs: {', '.join(missing)}. "
            "Run `dvc commit --force` if the workspace has them, or `learner run --force`, and push again"
        )


def _print_experiments(names: Sequence[str], target: str) -> None:
    """Print the experiments that are pushed to the git remote *target*: *names*, or all of this clone."""
    from pipeline.revisions.names import list_experiments

    found = list_experiments(names)
    url = try_git(Path(), "remote", "get-url", target).stdout.strip()
    print_line(f"experiments for {target}{f' ({url})' if url else ''}: {len(found) or 'none'}")
    for name, sha in found:
        print_line(f"  {name}  {sha[:7]}")


def _verify_workspace() -> None:
    """Verify the fetched outputs of the workspace, and remove files restored from damaged objects."""
    from pipeline.revisions.files import WORKSPACE, read_revisions
    from pipeline.revisions.verification import remove_damaged_checkouts

    found = read_revisions([WORKSPACE])
    _verify(found)
    remove_damaged_checkouts(found[WORKSPACE])


def _verify_experiments(names: Sequence[str] | None) -> None:
    """Verify the fetched outputs of the experiments *names*, or of all on HEAD."""
    from pipeline.revisions.files import WORKSPACE, read_revisions

    found = {name: files for name, files in read_revisions(names or None).items() if name != WORKSPACE}
    if found:
        _verify(found)


def _verify(revisions: Mapping[str, "RevisionFiles"]) -> None:
    from pipeline.revisions.verification import verify_outputs

    found = verify_outputs(revisions)
    if found.problems:
        lines = [f"problems in what was pulled: {len(found.problems)}", *found.problems]
        raise StageError("\n  ".join(lines) + f"\n{DAMAGE_REMEDY}")
    print_line(f"verified: {found.files} files, {found.records} records and checkpoints")


def _remote_option(remote: str | None) -> list[str]:
    return ["--remote", remote] if remote else []


def _scope(experiments: Sequence[str] | None) -> list[str]:
    return [] if experiments else ["--all-commits"]


def _run(command: Sequence[str]) -> None:
    from pipeline.engine.dvc_process import print_output_of_dvc

    print_line(f"$ {' '.join(command)}")
    if code := print_output_of_dvc(command[1:]):
        hint = EXPERIMENT_REMOTE if {"exp", "--remote"} <= {*command} else ""
        raise StageError(
            f"`{' '.join(command)}` failed with exit code {code}; its messages are printed above. Run "
            f"`learner doctor` to check the remotes{hint}"
        )
