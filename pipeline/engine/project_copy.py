"""Temporary copies of the project, in which DVC can stash and reset."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dvc.config import Config, merge
from dvc.repo import Repo

from pipeline.engine.frozen_inputs import FrozenProject
from pipeline.engine.git import run_git
from stages.contracts.errors import RunInUseError, StageError
from stages.contracts.file_lock import hold_lock
from stages.contracts.processes import pids_below
from stages.runs.layout import RUNS_FOLDER

COPY_SUFFIX = ".copy"
"""Suffix of a copy's name."""
PAUSE_SECONDS = 0.2
LOCK_SUFFIX = ".lock"
"""Suffix of the name of the lock file next to a copy."""


@contextmanager
def temporary_copy(base: FrozenProject, place: Path) -> Iterator[Path]:
    """Yield the folder of the project *base* in a clone at *place*, and remove the clone after the block.

    The clone shares git's objects, DVC's cache and the run stores with the project. A clone of an earlier
    attempt at *place* is removed first.
    """
    shutil.rmtree(place, ignore_errors=True)
    try:
        yield _clone(base, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _clone(base: FrozenProject, place: Path) -> Path:
    try:
        run_git(base.top, "clone", "--quiet", "--shared", "--no-checkout", str(base.top), str(place))
        run_git(place, "checkout", "--quiet", "--force", "-B", "experiment", base.head)
        run_git(place, "restore", "--source", base.commit, "--staged", "--worktree", ":/")
        folder = place / base.prefix
        _share_identity(base, place)
        _share_cache(base.root, folder)
        with (place / ".git/info/exclude").open("a") as file:
            file.write(f"{RUNS_FOLDER}\n")
        (base.root / RUNS_FOLDER).mkdir(exist_ok=True)
        shared = base.root / RUNS_FOLDER
        (folder / RUNS_FOLDER).symlink_to(shared)  # the next attempt resumes from what a killed run saved
    except OSError as error:
        raise StageError(
            f"the copy {place} cannot be created: {error}. Check the free space and the permissions"
        ) from error
    return folder


def remove_orphaned(folder: Path) -> None:
    """Remove the orphaned copies below *folder*, in which no process works any more.

    Each copy has a lock file next to it.
    """
    for place in folder.glob(f"*{COPY_SUFFIX}"):
        with suppress(OSError, RunInUseError), hold_lock(place.with_suffix(LOCK_SUFFIX)):
            if not _is_in_use(place):
                shutil.rmtree(place, ignore_errors=True)
                place.with_suffix(LOCK_SUFFIX).unlink(missing_ok=True)


def wait_until_unused(place: Path, seconds: float) -> None:
    """Wait until no process works in the copy *place*, but at most *seconds*."""
    deadline = time.monotonic() + seconds
    while _is_in_use(place) and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)


def _is_in_use(place: Path) -> bool:
    """Return whether the working directory of a process is *place*, or below it."""
    return any(True for _ in pids_below(place))


def fetch_experiment(base: FrozenProject, place: Path, name: str) -> None:
    """Fetch the experiment *name* from the clone at *place* into the project, with one atomic update."""
    ref = base.ref(name)
    run_git(base.top, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc",
               str(place), f"{ref}:{ref}")  # fmt: skip


def _share_identity(base: FrozenProject, place: Path) -> None:
    """Copy the name and the address of the committer, which may be set in this project only."""
    for key in ("user.name", "user.email"):
        with suppress(StageError):
            run_git(place, "config", key, run_git(base.top, "config", "--get", key).rstrip("\n"))


def _share_cache(root: Path, folder: Path) -> None:
    with Repo(str(root)) as repo:
        now = _read_settings(repo.config)
        now["cache"]["dir"] = repo.cache.local_cache_dir
    now["core"]["site_cache_dir"] = str(
        folder / ".dvc/tmp/site"
    )  # otherwise a directory of each copy would remain
    with Config(os.fspath(folder / ".dvc")).edit("local", validate=False) as local:
        merge(local, now)


def _read_settings(config: Config) -> Config:
    """Return the settings in the project's two files, with absolute paths."""
    now = config.read("repo")
    merge(now, config.read("local"))
    return now
