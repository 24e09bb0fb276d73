"""The project at one moment, as a git commit, and temporary copies of it for isolated runs.

The commit has HEAD and the changes in the workspace, and no reference points to it. All points of a sweep run
the same code even if files are edited while it runs. DVC stashes and resets only in the copies, so that
neither DVC nor a kill changes the user's files.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from dvc.config import Config, merge
from dvc.repo import Repo

from pipeline.project.git import (
    MAX_LISTED_FILES,
    experiment_ref,
    find_head,
    git_error,
    list_changed_submodules,
    list_experiments,
    list_submodules,
    run_git,
    try_git,
)
from pipeline.project.params_edit import parse_params
from pipeline.project.paths import SITE_CACHE_VARIABLE, check_path
from pipeline.project.revisions.dvc_checks import apply_checks
from pipeline.project.revisions.names import read_objects
from stages.contracts.errors import ParamsError, RunInUseError, StageError
from stages.contracts.text import join_names
from stages.runs.layout import RUNS_FOLDER
from stages.system.file_lock import hold_lock
from stages.system.processes import pids_below

COPY_SUFFIX = ".copy"
"""Suffix of a copy's name."""
PAUSE_SECONDS = 0.2
EXIT_SECONDS = 60.0
"""Time limit for the processes of a killed attempt to save and exit."""
LOCK_SUFFIX = ".lock"
"""Suffix of the name of the lock file next to a copy."""


@dataclass(frozen=True)
class FrozenProject:
    """A project at one moment."""

    root: Path
    """The folder of the project, which contains params.yaml."""
    top: Path
    """The top-level folder of the git repository."""
    head: str
    """The commit that the experiments belong to."""
    commit: str
    """HEAD with the changes in the workspace; HEAD itself if nothing has changed."""

    def text(self, path: str, commit: str | None = None) -> str | None:
        """Return the content of the file *path* in *commit*, by default `commit`; None if it is missing."""
        [file] = read_objects(self.root, [f"{commit or self.commit}:{path}"])
        return file.data.decode() if file and file.type_str == "blob" else None

    def list_changed_entries(self, commit: str) -> set[str]:
        """Return the names in the root folder of the project whose file or folder differs in *commit*."""
        folders = read_objects(self.root, [f"{self.commit}:", f"{commit}:"])
        before, after = (_list_entries(folder) for folder in folders)
        return {name for name, _, _ in before ^ after}

    def content(self, path: str, commit: str | None = None) -> Any:
        """Return the values in the file *path*, read as DVC reads params; empty if the file is missing."""
        text = self.text(path, commit)
        return {} if text is None else parse_params(text, path)

    def experiments(self) -> dict[str, str]:
        """Return the experiments of this HEAD: name to commit."""
        return list_experiments(self.root, self.head)

    def ref(self, name: str) -> str:
        """Return the git reference of the experiment *name* of this HEAD."""
        return experiment_ref(self.head, name)


def _list_entries(folder: Any) -> set[tuple[str, str, int]]:
    """Return the name, the id and the mode of each entry of *folder*; none if it is missing."""
    entries = folder if folder and folder.type_str == "tree" else ()
    return {(str(entry.name), str(entry.id), entry.filemode) for entry in entries}


def freeze(root: Path) -> FrozenProject:
    """Return the project in *root* at this moment, with the files that git tracks.

    Raises `ParamsError` unless *root* is a project of DVC in a git repository with a commit.
    """
    root = root.resolve()
    check_path(root)
    if not (root / ".dvc").is_dir():
        remedy = (
            "An experiment needs a project of its own: run `dvc init --subdir` in it"
            if (root / "dvc.yaml").exists()
            else "Run the command in the folder that has dvc.yaml and params.yaml"
        )
        raise ParamsError(f"{root} has no .dvc. {remedy}")
    head = find_head(root)
    top = Path(run_git(root, "rev-parse", "--show-toplevel").strip())
    try_git(root, "update-index", "--refresh")  # after `cp -a` or `touch`, git refuses to stash
    changed = try_git(root, "stash", "create", "learner sweep")
    if changed.returncode:
        lock = root / run_git(root, "rev-parse", "--git-path", "index.lock").strip()
        if not lock.exists():  # which `git stash create` does not report
            raise git_error(root, ("stash", "create"), changed)
        raise StageError(
            f"{lock} exists: another git process runs in this repository, or was killed. If none runs, "
            "run `learner doctor --fix`"
        )
    if submodules := list_changed_submodules(top):
        raise StageError(
            f"the submodule {join_names(submodules, MAX_LISTED_FILES)} has changes that are in no commit, "
            "and an experiment has the files of commits. Commit them in the submodule"
        )
    return FrozenProject(root, top, head, changed.stdout.strip() or head)


def find_untracked_code(root: Path) -> list[str]:
    """Return the Python files below *root* that git neither tracks nor ignores; isolated copies lack them."""
    return run_git(root, "ls-files", "--others", "--exclude-standard", "--", "*.py").splitlines()


@contextmanager
def temporary_copy(base: FrozenProject, place: Path) -> Iterator[Path]:
    """Yield the folder of the project *base* in a clone at *place*, and remove the clone after the block.

    The clone shares git's objects and DVC's cache with the project, and a process in it that has the
    variable `STORES_VARIABLE` the run stores. A clone of an earlier attempt at *place* is removed first.
    """
    shutil.rmtree(place, ignore_errors=True)
    try:
        yield _clone(base, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _clone(base: FrozenProject, place: Path) -> Path:
    try:
        _check_out(base.top, place, base.head, base.commit)
        for name, value in _identity(base).items():
            run_git(place, "config", name, value)
        folder = place / base.root.relative_to(base.top)
        _share_cache(base.root, folder)
        with (place / ".git/info/exclude").open("a") as file:
            file.write(f"{RUNS_FOLDER}\n")
    except OSError as error:
        raise StageError(
            f"the copy {place} cannot be created: {error}. Check the free space and the permissions"
        ) from error
    return folder


def _check_out(source: Path, place: Path, head: str, commit: str) -> None:
    """Create a repository in *place* with the files of *commit*, and with those of its submodules.

    Its HEAD is *head*. It shares the objects of the repository in *source*, also if that is a shallow clone,
    from which `git clone` takes no commit without a reference.
    """
    run_git(source, "init", "--quiet", str(place))
    listed = run_git(source, "rev-parse", "--git-path", "objects", "--git-path", "shallow").splitlines()
    objects, shallow = [(source / path).resolve() for path in listed]
    (place / ".git/objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8")
    if shallow.exists():
        shutil.copyfile(shallow, place / ".git/shallow")
    run_git(place, "update-ref", "--no-deref", "HEAD", head)
    run_git(place, "read-tree", "--reset", "-u", commit)
    for path, sha in list_submodules(place).items():
        if (source / path / ".git").exists():
            _check_out(source / path, place / path, sha, sha)


def copy_compiled_modules(base: FrozenProject, folder: Path) -> None:
    """Copy the compiled modules of the project *base* to its copy in *folder*, if the sources are equal.

    A compiled module is valid for the size and the time of its source, so the source gets the time too.
    """
    for source in folder.rglob("*.py"):
        original = base.root / source.relative_to(folder)
        compiled = Path(cache_from_source(str(original)))
        with suppress(OSError):
            if compiled.exists() and original.read_bytes() == source.read_bytes():
                target = Path(cache_from_source(str(source)))
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(compiled, target)
                os.utime(source, ns=(0, original.stat().st_mtime_ns))


def _is_in_use(place: Path) -> bool:
    """Return whether the working directory of a process is *place*, or below it."""
    return any(True for _ in pids_below(place))


def remove_orphaned(folder: Path, is_in_use: Callable[[Path], bool] = _is_in_use) -> None:
    """Remove the orphaned copies below *folder*, in which no process works any more, by *is_in_use*.

    Each copy has a lock file next to it.
    """
    for place in folder.glob(f"*{COPY_SUFFIX}"):
        with suppress(OSError, RunInUseError), hold_lock(place.with_suffix(LOCK_SUFFIX)):
            if not is_in_use(place):
                shutil.rmtree(place, ignore_errors=True)
                place.with_suffix(LOCK_SUFFIX).unlink(missing_ok=True)


def wait_until_unused(place: Path) -> None:
    """Wait until no process works in the copy *place*, but at most `EXIT_SECONDS`."""
    deadline = time.monotonic() + EXIT_SECONDS
    while _is_in_use(place) and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)


def fetch_experiment(base: FrozenProject, place: Path, name: str, replaces: str = "") -> None:
    """Fetch the experiment *name* from the clone at *place* into the project, with one atomic update.

    An experiment of that name is an error, unless it is the commit *replaces*.
    """
    ref = base.ref(name)
    options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc")
    run_git(base.top, "fetch", *options, str(place), ref)
    run_git(base.top, "update-ref", ref, run_git(place, "rev-parse", ref).strip(), replaces)


@lru_cache(maxsize=1)
def _identity(base: FrozenProject) -> dict[str, str]:
    """Return the name and the address of the committer as settings, which may be set in this project only."""
    names = ("user.name", "user.email")
    settings = {name: try_git(base.top, "config", "--get", name).stdout.rstrip("\n") for name in names}
    return {name: value for name, value in settings.items() if value}


def _share_cache(root: Path, folder: Path) -> None:
    apply_checks()
    with Repo(str(root)) as repo:
        now = repo.config.read("repo")  # the settings in the project's two files, with absolute paths
        merge(now, repo.config.read("local"))
        now["cache"]["dir"] = repo.cache.local_cache_dir
    state = Path(isolate_site_cache(folder)[SITE_CACHE_VARIABLE])
    state.mkdir(mode=0o700, parents=True)
    now["core"]["site_cache_dir"] = str(state)
    with Config(os.fspath(folder / ".dvc")).edit("local", validate=False) as local:
        merge(local, now)


def isolate_site_cache(folder: Path) -> dict[str, str]:
    """Return the variables with which DVC keeps the state of the copy in *folder* there.

    Otherwise a directory of each copy would remain. The variable precedes the settings of the copy.
    """
    return {SITE_CACHE_VARIABLE: str(folder / ".dvc/tmp/site")}
