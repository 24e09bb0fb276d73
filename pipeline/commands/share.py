"""The commands ``learner push`` and ``learner pull``: DVC's own, each one said before it is run."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipeline.engine.git import try_git
from stages.contracts.errors import ParamsError, StageError

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[EXPERIMENT]...", help="Only these; without, all there is.")
]
Remote = Annotated[str | None, typer.Option("--remote", "-r", help="DVC's remote, where not the default.")]
GitRemote = Annotated[
    str | None, typer.Option("--git-remote", help="Where experiments go; without, origin or the only one.")
]


def push(experiments: Names = None, *, remote: Remote = None, git_remote: GitRemote = None) -> None:
    """Send outputs, run-cache and experiments to where others can pull them. Commits go with `git push`."""
    where = chosen_git_remote(git_remotes(), git_remote, experiments or ())
    for command in push_commands(experiments or (), remote, where):
        _run(command)


def pull(experiments: Names = None, *, remote: Remote = None, git_remote: GitRemote = None) -> None:
    """Bring what others have pushed: experiments, run-cache, and the outputs of this commit."""
    where = chosen_git_remote(git_remotes(), git_remote, experiments or ())
    for command in pull_commands(experiments or (), remote, where):
        _run(command)


def push_commands(experiments: Sequence[str], remote: str | None, git_remote: str | None) -> list[list[str]]:
    """What sends *experiments*, or, with none named, this commit's outputs and all experiments."""
    own = ["--remote", remote] if remote else []
    commands = [] if experiments else [["dvc", "push", "--run-cache", *own]]
    if git_remote:
        commands.append(["dvc", "exp", "push", *own, *_which(experiments), git_remote, *experiments])
    return commands


def pull_commands(experiments: Sequence[str], remote: str | None, git_remote: str | None) -> list[list[str]]:
    """What brings *experiments*, or, with none named, all of them and this commit's outputs."""
    own = ["--remote", remote] if remote else []
    commands = [] if experiments else [["dvc", "pull", "--run-cache", *own]]
    if git_remote:
        commands.insert(0, ["dvc", "exp", "pull", *own, *_which(experiments), git_remote, *experiments])
    return commands


def chosen_git_remote(there: Sequence[str], asked: str | None, experiments: Sequence[str]) -> str | None:
    """The remote of git's that experiments go to: *asked*, or origin, or the only one *there*; None for none.

    Raises `ParamsError` where *experiments* are named and nothing says where to.
    """
    if asked:
        return asked
    if "origin" in there:
        return "origin"
    if len(there) == 1:
        return there[0]
    if experiments:
        raise ParamsError(
            "experiments are git's commits, and go to a remote of git's; "
            f"there: {', '.join(there) or 'none'}. `git remote add origin URL` adds one, "
            "--git-remote NAME (or a URL) says which"
        )
    return None


def git_remotes() -> list[str]:
    """Git's remotes of this project; none where it is no git repository."""
    try:
        return try_git(Path(), "remote").stdout.split()
    except StageError:  # git is missing
        return []


def _which(experiments: Sequence[str]) -> list[str]:
    return [] if experiments else ["--all-commits"]


def _run(command: Sequence[str]) -> None:
    typer.echo(f"$ {' '.join(command)}")
    code = subprocess.run([sys.executable, "-m", *command], check=False).returncode  # noqa: S603  DVC, of this environment
    if code:
        raise StageError(
            f"`{' '.join(command)}` ended with {code}; what it said stands above. `learner doctor` says "
            "which remotes are set up, and whether they answer"
        )
