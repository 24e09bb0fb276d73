"""The push at the end of a flow: DVC's cache, and the experiment of the run."""

from collections.abc import Callable
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.engine.dvc_process import run_dvc
from pipeline.engine.git import run_git
from stages.contracts.errors import StageError


def check_remotes(*, experiment: bool) -> None:
    """Raise `StageError` if there is no remote to push to; call it before training rather than after."""
    try:
        with Repo() as repo:
            if not repo.config["remote"]:
                raise StageError(
                    "push is set, but DVC has no remote. Run `dvc remote add --default NAME URL`"
                )
    except DvcException as error:
        raise StageError(f"cannot read the remotes of DVC: {error}. Correct .dvc/config") from error
    if experiment:
        find_git_remote()


def find_git_remote() -> str:
    """Return ``origin``, or else the only git remote. Raises `StageError` if neither exists."""
    names = run_git(Path(), "remote").split()
    if "origin" in names:
        return "origin"
    if len(names) != 1:
        raise StageError(
            "push is set, and an experiment is pushed to the git remote 'origin' or to the only remote; "
            f"found {', '.join(names) or 'none'}. Run `git remote add origin URL`"
        )
    return names[0]


def push_results(experiment: str | None, log_line: Callable[[str], None]) -> None:
    """Push the cache with the run-cache, or *experiment* with its part of the cache.

    *log_line* receives the output of DVC. Raises `StageFailedError` if DVC fails.
    """
    command = ["exp", "push", find_git_remote(), experiment] if experiment else ["push", "--run-cache"]
    run_dvc(command, log_line=log_line)
