"""Calls of git, and the check of what a repository has delivered. No other module of the pipeline starts git.

The program is the ``git`` on the ``PATH``, which DVC finds too. Each call is for the repository of its
folder: the variables with which a hook of git names another one are dropped.

``.runs`` and ``.dvc/tmp`` have locks, journals and run stores, which only runs of their user may write: a
repository that tracks one of them could replace params.yaml, publish results of its own, or have a file of
the user written through a link.

A folder with the files of a bare repository is one for git, which runs the programs that its settings name.
Any repository can deliver such a folder, so git and our commands refuse it.
"""

import os
import re
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.project.paths import DVC_FOLDER, find_above, runs_root
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.text import join_names
from stages.runs.layout import RUNS_FOLDER
from stages.system.files import read_regular

_LINK_MODE = "120000 "
"""Beginning of the entry for a symbolic link that git prints."""
_SUBMODULE_MODE = "160000 "
_CHANGED_SUBMODULE = re.compile(r"1 \S+ S.M.(?: \S+){5} (.+)")
"""Matches the line of `git status` for a submodule with changes in files that it tracks."""
SUBMODULES_FILE = ".gitmodules"
_LINK_ENTRY = b"\0\0\xa0\0"
"""The mode of a symbolic link in git's index."""
_SHARED_INDEX = b"link"
"""Name of the extension of an index whose entries are in another file."""
_PLAIN_INDEXES = (b"DIRC\0\0\0\2", b"DIRC\0\0\0\3")
"""Beginnings of the versions of the index that contain whole paths; the fourth shortens them."""
OF_THE_USER = frozenset({"tmp", "config.local"})
"""What a repository must not deliver in the folder of DVC; the second may name programs."""
VARIABLES_OF_A_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
"""What ``git rev-parse --local-env-vars`` lists, except for settings such as safe.directory.

Git itself passes those, GIT_CONFIG_COUNT and GIT_CONFIG_PARAMETERS, on to its calls for a submodule.
"""
REFUSE_BARE = ("safe.bareRepository", "explicit")
"""The setting of git, since 2.38, with which it finds no bare repository by itself."""
MAX_LISTED_FILES = 3
EXPERIMENT_ARGUMENTS = ".dvc/tmp/repro.dat"
"""The file with its arguments that `dvc exp run` stages for less than a second."""
STAGING_SECONDS = 3
POLL_SECONDS = 0.1


def list_tracked_files(folder: Path) -> dict[Path, bool]:
    """Return whether it is a link for each file below *folder* in git's index; empty without a repository.

    The paths are relative to *folder*. Raises `StageError` if git cannot read the repository.
    """
    if find_top(folder) is None:
        return {}
    return {path: entry.startswith(_LINK_MODE) for path, entry in _list_index(folder)}


def list_submodules(folder: Path) -> dict[Path, str]:
    """Return path to commit of each submodule of the repository whose top-level folder is *folder*."""
    if not (folder / SUBMODULES_FILE).exists():
        return {}
    entries = _list_index(folder)
    return {path: entry.split()[1] for path, entry in entries if entry.startswith(_SUBMODULE_MODE)}


def _list_index(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path of each file in git's index, with its mode, its id and its stage."""
    for line in run_git(folder, "ls-files", "-z", "--stage").split("\0")[:-1]:
        entry, _, name = line.partition("\t")
        yield Path(name), entry


def list_changed_submodules(folder: Path) -> list[str]:
    """Return the path of each submodule of the repository *folder* with changes in files that it tracks."""
    if not (folder / SUBMODULES_FILE).exists():
        return []
    options = ("--porcelain=2", "-z", "--ignore-submodules=none", "--untracked-files=no")
    matches = map(_CHANGED_SUBMODULE.match, run_git(folder, "status", *options).split("\0"))
    return [match[1] for match in matches if match]


def may_track(folder: Path, names: Sequence[str]) -> bool:
    """Return False if git's index certainly has no link, and no path with one of *names* in it.

    The index itself is searched: a process of git takes longer than all else that a light command does.
    """
    top = find_top(folder)
    if top is None:
        return False
    try:
        index = read_regular(top / ".git/index")
    except OSError:  # none yet, or in another folder, as for a worktree
        return True
    signs = (_LINK_ENTRY, _SHARED_INDEX, *(name.encode() for name in names))
    return not index.startswith(_PLAIN_INDEXES) or any(sign in index for sign in signs)


def find_top(folder: Path) -> Path | None:
    """Return the top-level folder of the repository of *folder*; None without a repository."""
    folders = (folder.absolute(), *folder.absolute().parents)
    return next((parent for parent in folders if (parent / ".git").exists()), None)


def run_git(folder: Path, *arguments: str) -> str:
    """Run git in *folder* and return what it prints. Raises `StageError` if it fails or is missing."""
    done = try_git(folder, *arguments)
    if done.returncode:
        raise git_error(folder, arguments, done)
    return done.stdout


def try_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in *folder* and return its output and exit code.

    Raises `StageError` if git is missing.
    """
    command = ["git", "-C", str(folder), *arguments]
    environment = without_repository(os.environ)
    try:
        return subprocess.run(  # noqa: S603  no shell
            command, env=environment, capture_output=True, check=False, text=True, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise StageError(f"git cannot be started ({error.strerror}). Install git") from error


def git_error(folder: Path, arguments: Sequence[str], done: subprocess.CompletedProcess[str]) -> StageError:
    """Return the error for the command git *arguments* that failed, with git's own message."""
    output = " ".join(filter(None, (done.stderr.strip(), done.stdout.strip())))
    reason = output or f"exit code {done.returncode}, no message"
    return StageError(f"`git {' '.join(arguments[:2])}` failed in {folder}: {reason}")


def find_head(root: Path) -> str:
    """Return the SHA of HEAD in the repository *root*. Raises `ParamsError` if it has no commit."""
    head = try_git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if head.stderr.strip():
        raise git_error(root, ("rev-parse", "HEAD"), head)
    if head.returncode:
        raise ParamsError(
            f"{root} has no git commit, and experiments need one. Run `git add` and `git commit`"
        )
    return head.stdout.strip()


def experiment_ref(head: str, name: str) -> str:
    """Return the git reference of the experiment *name* of the commit *head*."""
    return f"refs/exps/{head[:2]}/{head[2:]}/{name}"


def list_experiments(root: Path, head: str) -> dict[str, str]:
    """Return name to commit of the experiments of the commit *head* in *root*, the oldest first."""
    prefix = experiment_ref(head, "")
    options = ("--sort=refname", "--sort=committerdate", "--format=%(objectname) %(refname)")
    pairs = (line.split(" ", 1) for line in run_git(root, "for-each-ref", *options, prefix).splitlines())
    return {ref.removeprefix(prefix): commit for commit, ref in pairs}


def without_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Return *environment* without the variables with which a hook of git names its repository and index."""
    return {name: value for name, value in environment.items() if name not in VARIABLES_OF_A_REPOSITORY}


def refuse_bare_repositories(environment: MutableMapping[str, str]) -> None:
    """Add `REFUSE_BARE` to the settings of git in *environment*, as ``git -c`` does."""
    name, value = REFUSE_BARE
    count = environment.get("GIT_CONFIG_COUNT", "0")
    if not count.isdecimal() or environment.get(f"GIT_CONFIG_KEY_{int(count) - 1}") == name:
        return
    environment.update({f"GIT_CONFIG_KEY_{count}": name, f"GIT_CONFIG_VALUE_{count}": value})
    environment["GIT_CONFIG_COUNT"] = str(int(count) + 1)


def check_no_bare_repository(folder: Path) -> None:
    """Raise `StageError` if *folder*, or one between it and its repository, is a bare repository for git."""
    for place in (folder.absolute(), *folder.absolute().parents):
        if (place / ".git").exists():
            return
        has_objects = (place / "objects").is_dir() and (place / "refs").is_dir()
        if os.path.lexists(place / "HEAD") and (has_objects or (place / "commondir").exists()):
            raise StageError(
                f"{place} has the files HEAD, objects and refs of a bare git repository, whose settings can "
                "name programs that git runs. Find out who has added them, and remove them"
            )


def check_delivered_files(*, is_repair: bool = False) -> None:
    """Raise `StageError` if git tracks files of the state of this project, or another user has written them.

    Also raise it if git tracks a link in the folder of DVC, or a link to a device, which may have no end. A
    repair, `learner doctor`, accepts the arguments that a killed `dvc exp run` has staged.
    """
    check_no_bare_repository(Path())
    runs, dvc = runs_root().absolute(), find_above(DVC_FOLDER).absolute()
    if os.path.lexists(runs):
        _check_owner(runs)
    roots = {path.parent for path in (runs, dvc) if os.path.lexists(path)}
    refused, deadline = _list_refused(roots), time.monotonic() + STAGING_SECONDS
    while refused == {EXPERIMENT_ARGUMENTS: False} and not _is_committed(dvc.parent, EXPERIMENT_ARGUMENTS):
        if is_repair:
            return
        if time.monotonic() > deadline:
            raise StageError(
                f"a killed `dvc exp run` has left {EXPERIMENT_ARGUMENTS} in git's index. Run `learner doctor "
                "--fix`, which undoes its changes"
            )
        time.sleep(POLL_SECONDS)
        refused = _list_refused(roots)
    if refused:
        raise StageError(
            f"git tracks {join_names(refused, MAX_LISTED_FILES)}: files that only a user or runs on this "
            "machine may write, or links in their place or to devices. Find out who has added them, run "
            "`git rm -r --cached` for them, and remove them"
        )


def _list_refused(roots: Iterable[Path]) -> dict[str, bool]:
    """Return whether it is a link for each file below one of *roots* that git must not deliver."""
    refused: dict[str, bool] = {}
    delivered = (RUNS_FOLDER, *(f"{DVC_FOLDER}/{name}" for name in OF_THE_USER))
    for root in roots:
        tracked = list_tracked_files(root) if may_track(root, delivered) else {}
        refused |= {
            str(path): link for path, link in tracked.items() if _is_refused(root, path, is_link=link)
        }
    return refused


def _is_committed(root: Path, path: str) -> bool:
    """Return whether the commit of HEAD has the file *path*, relative to *root*."""
    return try_git(root, "cat-file", "-e", f"HEAD:./{path}").returncode == 0


def _is_refused(root: Path, path: Path, *, is_link: bool) -> bool:
    first, *below = path.parts
    if first == RUNS_FOLDER or (
        first == DVC_FOLDER.name and (is_link or not OF_THE_USER.isdisjoint(below[:1]))
    ):
        return True
    place = root / path
    return is_link and place.exists() and not (place.is_file() or place.is_dir())


def _check_owner(runs: Path) -> None:
    """Raise `StageError` if a file of *runs* belongs neither to this user, the project's, nor its group."""
    project = runs.parent.stat()
    owners = {os.geteuid(), project.st_uid}
    shared = project.st_gid if project.st_mode & stat.S_ISGID else None
    for path in (runs, *runs.glob("*")):
        with suppress(FileNotFoundError):  # the watchdog of an earlier command has removed its claim
            about = path.lstat()
            if about.st_uid not in owners and about.st_gid != shared:
                raise StageError(
                    f"{path} belongs to user {about.st_uid}, neither to you nor to the owner of this folder. "
                    "Run in your own clone, or remove it"
                )
