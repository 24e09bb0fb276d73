"""Names of revisions: experiments, branches, tags, SHAs and expressions of git, and the objects they name."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.experiments.utils import AmbiguousExpRefInfo, fix_exp_head, resolve_name
from dvc.scm import NoSCM, RevError, SCMError, map_scm_exception, resolve_rev

from pipeline.project.git import find_head
from pipeline.project.revisions.dvc_checks import apply_checks
from stages.contracts.errors import ParamsError, StageError

if TYPE_CHECKING:
    import pygit2

PYGIT2 = "pygit2"
"""The library that reads objects. It takes 40 ms to import, and most runs read none."""
LINK_MODE = 0o120000
"""The mode of a link in a tree of git."""
MAX_LINKS = 40
"""Links in the path of a file, as in Linux."""


@contextmanager
def open_project() -> Iterator[Repo]:
    """Open the project of the current folder.

    Raises `StageError` if git or DVC has none here, and `ParamsError` if git has no commit.
    """
    apply_checks()
    try:
        with Repo() as repo:
            if isinstance(repo.scm, NoSCM):
                raise StageError(f"{Path.cwd()} is not a git repository, so it has no runs. Run `git init`")
            find_head(Path(repo.scm.root_dir))
            yield repo
    except StageError:
        raise
    except DvcException as error:
        raise StageError(f"{Path.cwd()} has no runs that can be read: {error}. Run `dvc init`") from error


def resolve(name: str) -> str:
    """Return the full SHA of *name* in the project of the current folder.

    Raises `ParamsError` for an unknown name, `StageError` if this is not a project of git and DVC.
    """
    with open_project() as repo:
        return resolve_in(repo, name)


def resolve_in(repo: Repo, name: str) -> str:
    """Return the full SHA of *name*. Raises `ParamsError` for an unknown name, and for a blank one."""
    _check_not_blank(name)
    try:
        return str(resolve_rev(repo.scm, name))
    except RevError as error:
        listed = repo.experiments.ls(all_commits=True).values()
        experiments = ", ".join(sorted(name for group in listed for name, _ in group)) or "none"
        raise ParamsError(
            f"{error}: not an experiment, tag, branch or commit of this repository. Experiments: "
            f"{experiments}. Run `dvc exp pull` or `git fetch` to get those of others"
        ) from error


def resolve_all(repo: Repo, names: Sequence[str]) -> dict[str, str]:
    """Return name to full SHA. Raises `ParamsError` for an unknown name, and for a blank one.

    The list of experiments, which git keeps in one file for each, is read once.
    """
    commits, unknown = {}, []
    for name in names:
        _check_not_blank(name)
        try:
            with map_scm_exception():
                commits[name] = str(repo.scm.resolve_rev(fix_exp_head(repo.scm, name)))
        except SCMError:
            unknown.append(name)
    try:
        refs = resolve_name(repo.scm, unknown)
    except AmbiguousExpRefInfo:
        refs = {}
    for name in unknown:  # resolve_in raises for a name that no experiment has, or two
        commits[name] = str(repo.scm.get_ref(str(refs[name]))) if refs.get(name) else resolve_in(repo, name)
    return commits


def find_collisions(repo: Repo, experiments: Mapping[str, str]) -> set[str]:
    """Return the names in *experiments*, name to full SHA, that git resolves to another commit.

    That commit is for example a branch or a tag, which has precedence over the experiment.
    """
    commits = read_objects(Path(repo.scm.root_dir), [f"{name}^{{commit}}" for name in experiments])
    pairs = zip(experiments.items(), commits, strict=True)
    return {name for (name, sha), commit in pairs if commit and str(commit.id) != sha}


def read_commits(root: Path, names: Sequence[str]) -> "list[pygit2.Commit]":
    """Return the commits *names* of the repository *root*. Raises `StageError` for a missing one."""
    commits = read_objects(root, [f"{name}^{{commit}}" for name in names])
    missing = [name for name, commit in zip(names, commits, strict=True) if commit is None]
    if missing:
        raise StageError(f"git has no commit {', '.join(missing)} in {root}. Run `git fsck`")
    return [commit for commit in commits if commit]


def commit_time(commit: "pygit2.Commit") -> datetime:
    """Return the time of *commit*, in the time zone of its committer."""
    zone = timezone(timedelta(minutes=commit.commit_time_offset))
    return datetime.fromtimestamp(commit.commit_time, zone)


def read_objects(folder: Path, names: Sequence[str]) -> list[Any]:
    """Return the `pygit2.Object` of each of *names*; None for a missing object.

    A name is a revision in the repository of *folder*, or ``REVISION:PATH`` for a file or a folder below
    *folder*, also through links in the same commit. Raises `StageError` if there is no repository.
    """
    repository, prefix = _open_repository(folder)
    errors = (KeyError, ValueError, TypeError, import_module(PYGIT2).GitError)
    objects: list[Any] = []
    for name in names:
        revision, is_file, path = name.partition(":")
        try:
            if is_file:
                tree = repository.revparse_single(f"{revision}^{{tree}}")
                objects.append(_find_file(tree, posixpath.join(prefix, path)))
            else:
                objects.append(repository.revparse_single(revision))
        except errors:
            objects.append(None)
    return objects


@lru_cache(maxsize=8)
def _open_repository(folder: Path) -> "tuple[pygit2.Repository, str]":
    """Return the repository of *folder*, and the path of *folder* in it."""
    library: Any = import_module(PYGIT2)
    try:
        repository = library.Repository(library.discover_repository(str(folder)) or str(folder))
        return repository, folder.resolve().relative_to(repository.workdir).as_posix()
    except library.GitError as error:
        raise StageError(f"git cannot read {folder}: {error}. Run `git status` in that folder") from error


def _find_file(root: Any, path: str, links: int = 0) -> Any:
    """Return the object at *path* below the tree *root*, through links; `KeyError` if it is missing."""
    parts: tuple[str, ...] = PurePosixPath(posixpath.normpath(path)).parts
    entry: Any = root
    for place, name in enumerate(parts):
        entry = entry / name
        if entry.filemode == LINK_MODE:
            target = posixpath.join(*parts[:place], entry.data.decode(), *parts[place + 1 :])
            if links == MAX_LINKS:
                raise KeyError(path)
            return _find_file(root, target, links + 1)
    return entry


def _check_not_blank(name: str) -> None:
    """Raise `ParamsError` for a blank *name*, which DVC would resolve to HEAD."""
    if not name.strip():
        raise ParamsError(f"{name!r} names no revision. Name an experiment, branch, tag or SHA, or HEAD")
