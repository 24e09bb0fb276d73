"""What a flow pushes at its end: DVC's cache, and the experiment that it made."""

from collections.abc import Callable
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.engine.dvc_process import run_dvc
from pipeline.engine.git import run_git
from stages.contracts.errors import StageError


def check_remotes(*, experiment: bool) -> None:
    """Raise `StageError` where there is nowhere to push to; told before a training, not after it."""
    try:
        with Repo() as repo:
            if not repo.config["remote"]:
                raise StageError(
                    "push is asked for, and DVC has no remote: `dvc remote add --default NAME URL` adds one"
                )
    except DvcException as error:
        raise StageError(f"the remotes cannot be read: {error}") from error
    if experiment:
        find_git_remote()


def find_git_remote() -> str:
    """``origin``, or the only remote of git that there is. Raises `StageError` where that is none."""
    names = run_git(Path(), "remote").split()
    if "origin" in names:
        return "origin"
    if len(names) != 1:
        raise StageError(
            "push of an experiment is asked for, and it goes to git's remote 'origin', or to the only one "
            f"there is; there: {', '.join(names) or 'none'}. `git remote add origin URL` adds it"
        )
    return names[0]


def push_results(experiment: str | None, say: Callable[[str], None]) -> None:
    """Push the cache with its run-cache, or *experiment* with what of the cache belongs to it."""
    command = ["exp", "push", find_git_remote(), experiment] if experiment else ["push", "--run-cache"]
    run_dvc(command, say=say)
