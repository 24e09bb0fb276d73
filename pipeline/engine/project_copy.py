"""A temporary copy of the project, in which DVC may stash and reset."""

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
from stages.runs.layout import RUNS_FOLDER
from stages.runs.lock import held

COPY_SUFFIX = ".copy"
"""Suffix of a copy's name."""
PAUSE_SECONDS = 0.2
LOCK_SUFFIX = ".lock"
"""Suffix of the name of the lock file beside it."""


@contextmanager
def temporary_copy(base: FrozenProject, place: Path) -> Iterator[Path]:
    """The folder of the project in a clone at *place*, as *base* froze it; it is gone when the block ends.

    It shares git's objects, DVC's cache and the run stores with the project, and nothing else. What an
    earlier attempt left at *place* is removed first.
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
        (folder / RUNS_FOLDER).symlink_to(
            base.root / RUNS_FOLDER
        )  # what a killed run saved is found by the next attempt
    except OSError as error:
        raise StageError(f"the copy {place} cannot be made: {error}") from error
    return folder


def remove_orphaned(folder: Path) -> None:
    """Remove the copies below *folder* that a killed process left and in which no process works.

    Each copy has a lock file beside it. Without /proc such a process cannot be found, so all copies stay.
    """
    for place in folder.glob(f"*{COPY_SUFFIX}"):
        with suppress(OSError, RunInUseError), held(place.with_suffix(LOCK_SUFFIX)):
            if Path("/proc/self").exists() and not _is_in_use(place):
                shutil.rmtree(place, ignore_errors=True)
                place.with_suffix(LOCK_SUFFIX).unlink(missing_ok=True)


def wait_until_unused(place: Path, seconds: float) -> None:
    """Wait until no process works in the copy *place*, but at most *seconds*."""
    deadline = time.monotonic() + seconds
    while _is_in_use(place) and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)


def _is_in_use(place: Path) -> bool:
    """Return whether the working directory of a process is *place*, or below it."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if process.readlink().is_relative_to(place.resolve()):
                return True
    return False


def fetch_experiment(base: FrozenProject, place: Path, name: str) -> None:
    """Bring the experiment *name* from the clone at *place* into the project, with one atomic update."""
    ref = base.ref(name)
    run_git(base.top, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc",
               str(place), f"{ref}:{ref}")  # fmt: skip


def _share_identity(base: FrozenProject, place: Path) -> None:
    """Who commits, where only this one project says it."""
    for key in ("user.name", "user.email"):
        with suppress(StageError):
            run_git(place, "config", key, run_git(base.top, "config", "--get", key).rstrip("\n"))


def _share_cache(root: Path, folder: Path) -> None:
    with Repo(str(root)) as repo:
        now = _read_settings(repo.config)
        now["cache"]["dir"] = repo.cache.local_cache_dir
    now["core"]["site_cache_dir"] = str(folder / ".dvc/tmp/site")  # or each copy would leave one behind
    with Config(os.fspath(folder / ".dvc")).edit("local", validate=False) as local:
        merge(local, now)


def _read_settings(config: Config) -> Config:
    """What the project's own two files say, with paths that hold anywhere."""
    now = config.read("repo")
    merge(now, config.read("local"))
    return now
