"""The commands ``learner push`` and ``learner pull``, which print and run commands of DVC."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipeline.git import try_git
from stages.contracts.errors import ParamsError, StageError

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


def push(experiments: Names = None, *, remote: Remote = None, git_remote: GitRemote = None) -> None:
    """Push outputs, the run-cache and experiments to the remotes.

    Commits are not pushed: use `git push` for them.

    Example: learner push big longer --remote store
    """
    target = choose_git_remote(list_git_remotes(), git_remote, experiments or ())
    for command in push_commands(experiments or (), remote, target):
        _run(command)


def pull(experiments: Names = None, *, remote: Remote = None, git_remote: GitRemote = None) -> None:
    """Pull experiments, the run-cache and the outputs of this commit from the remotes.

    Example: learner pull big
    """
    source = choose_git_remote(list_git_remotes(), git_remote, experiments or ())
    for command in pull_commands(experiments or (), remote, source):
        _run(command)


def push_commands(experiments: Sequence[str], remote: str | None, git_remote: str | None) -> list[list[str]]:
    """Return the commands that push *experiments*, or the outputs of this commit and all experiments."""
    own = ["--remote", remote] if remote else []
    commands = [] if experiments else [["dvc", "push", "--run-cache", *own]]
    if git_remote:
        commands.append(["dvc", "exp", "push", *own, *_scope(experiments), git_remote, *experiments])
    return commands


def pull_commands(experiments: Sequence[str], remote: str | None, git_remote: str | None) -> list[list[str]]:
    """Return the commands that pull *experiments*, or all experiments and the outputs of this commit."""
    own = ["--remote", remote] if remote else []
    commands = [] if experiments else [["dvc", "pull", "--run-cache", *own]]
    if git_remote:
        commands.insert(0, ["dvc", "exp", "pull", *own, *_scope(experiments), git_remote, *experiments])
    return commands


def choose_git_remote(remotes: Sequence[str], name: str | None, experiments: Sequence[str]) -> str | None:
    """Return the git remote of experiments: *name*, else origin, else the only one of *remotes*, else None.

    Raises `ParamsError` if there is no such remote and *experiments* names some.
    """
    if name:
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


def _scope(experiments: Sequence[str]) -> list[str]:
    return [] if experiments else ["--all-commits"]


def _run(command: Sequence[str]) -> None:
    typer.echo(f"$ {' '.join(command)}")
    code = subprocess.run([sys.executable, "-m", *command], check=False).returncode  # noqa: S603  DVC, of this environment
    if code:
        raise StageError(
            f"`{' '.join(command)}` failed with exit code {code}; its messages are printed above. Run "
            "`learner doctor` to check the remotes"
        )
