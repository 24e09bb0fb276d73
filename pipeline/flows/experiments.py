"""The calls of DVC in a flow run: isolated, named experiments, and the push to the remotes.

An experiment runs in a clone of the project, never in the user's checkout. `dvc exp run` stashes, detaches
HEAD and resets in the folder that it is started in, and a kill leaves this unfinished. Its option ``--temp``
would make another copy, without the files of submodules.
"""

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from pipeline.engine.dvc_process import run_dvc
from pipeline.engine.project_copy import (
    COPY_SUFFIX,
    LOCK_SUFFIX,
    fetch_experiment,
    freeze,
    isolate_site_cache,
    remove_orphaned,
    temporary_copy,
    wait_until_unused,
)
from pipeline.flows.prefect_api import FLOW_RUN
from pipeline.project.git import run_git, try_git
from pipeline.project.inputs import find_outside_data, find_untracked_files
from pipeline.project.params import PARAMS, build_params_error, read_params
from pipeline.project.params_edit import set_params
from pipeline.project.paths import STORES_VARIABLE
from pipeline.project.revisions.dvc_checks import open_repository, remove_damaged_outputs
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.printing import print_line
from stages.runs.layout import COPIES_FOLDER
from stages.system.file_lock import hold_lock

_APPLIED = "Experiment results have been applied to your workspace."
"""What DVC prints at the end, about the copy."""
_IS_LOGGED = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \| ")
"""Matches the beginning of a line that a stage has logged to the server itself."""


@dataclass(frozen=True)
class Experiment:
    """The name, params and stages of an experiment."""

    name: str
    overrides: Sequence[str]
    """In the syntax of DVC's -S."""
    targets: Sequence[str]
    """Stages, empty for all, and options of ``dvc exp run``."""


def run_experiment(
    experiment: Experiment, logger: "Logger | LoggerAdapter[Any]", *, flow_run: str, deadline: float | None
) -> None:
    """Run *experiment* as an experiment and log its output to *logger*.

    The clone is git's HEAD with the changes in tracked files. The stages are tasks of *flow_run*. If it is
    stopped, the next run with the same params resumes from what it saved. If it exists, because *flow_run*
    is retried after a failed push, nothing runs. Raises as `run_dvc` does, `ParamsError` if the clone would
    lack a file of deps or data of the params, and `StageError` if git fails.
    """
    if run_git(Path(), "for-each-ref", f"refs/exps/*/*/{experiment.name}"):
        logger.info("the experiment %s of this run exists", experiment.name)
        return

    def log_line(line: str) -> None:
        if _IS_LOGGED.match(line):
            print_line(line)
        elif line and line != _APPLIED:
            logger.info("%s", line)

    command = ["exp", "run", "--name", experiment.name, *experiment.targets]
    fetch_experiments(Path.cwd())
    base = freeze(Path.cwd())
    definition = base.content("dvc.yaml")
    if untracked := find_untracked_files(definition):
        raise ParamsError("\n".join(untracked))
    remove_damaged_outputs(base.root)
    place = base.root / COPIES_FOLDER / f"{experiment.name}{COPY_SUFFIX}"
    place.parent.mkdir(parents=True, exist_ok=True)
    remove_orphaned(place.parent)
    wait_until_unused(place)
    with hold_lock(place.with_suffix(LOCK_SUFFIX)), temporary_copy(base, place) as folder:
        set_params(experiment.overrides, folder)  # DVC would resolve the interpolations of all keys
        if outside := find_outside_data(read_params(folder / PARAMS), definition, base.root):
            raise build_params_error(PARAMS, outside)
        stores = {STORES_VARIABLE: str(base.root)}  # the next attempt resumes from what a killed run saved
        environment = {FLOW_RUN: flow_run, **stores, **isolate_site_cache(folder)}
        run_dvc(command, environment, log_line=log_line, deadline=deadline, folder=folder)
        fetch_experiment(base, place, experiment.name)
    place.with_suffix(LOCK_SUFFIX).unlink(missing_ok=True)


def fetch_experiments(folder: Path) -> None:
    """Fetch the experiments of the remote into *folder* if it is a shallow clone: a run may resume from one.

    The clone of a worker has no references to them. Without a remote, nothing is fetched.
    """
    if run_git(folder, "rev-parse", "--is-shallow-repository").strip() == "true":
        try_git(folder, "fetch", "--quiet", "--depth", "1", "origin", "+refs/exps/*:refs/exps/*")


def warn_of_temporary_folder(folder: Path, warn: Callable[[str], None], *, push: bool) -> None:
    """Report before training what is lost if a worker has cloned the project into *folder* for one run."""
    if folder.is_relative_to(Path(tempfile.gettempdir()).resolve()):
        lost = "run store" if push else "experiment, the cache and the run store"
        warn(
            f"{folder} is a temporary folder, and the {lost} may be removed with it"
            + ". Set push" * (not push)
        )


def check_remotes(*, experiment: bool) -> None:
    """Raise `StageError` if there is no remote to push to; call it before training rather than after."""
    with open_repository(Path()) as repo:
        if not repo.config["remote"]:
            raise StageError("push is set, but DVC has no remote. Run `dvc remote add --default NAME URL`")
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
