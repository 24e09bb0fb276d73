"""Calls of git, and the check of what a repository has delivered. No other module of the pipeline starts git.

The program is the ``git`` on the ``PATH``, which DVC finds too. ``.runs`` and ``.dvc/tmp`` have locks,
journals and run stores, which only runs of their user may write: a repository that tracks one of them could
replace params.yaml, publish results of its own, or have a file of the user written through a link.
"""

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.project.paths import find_above, runs_root
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.text import join_names
from stages.runs.layout import RUNS_FOLDER
from stages.system.files import read_regular

_LINK_MODE = "120000 "
"""Beginning of the entry for a symbolic link that git prints."""
_LINK_ENTRY = b"\0\0\xa0\0"
"""The mode of a symbolic link in git's index."""
_SHARED_INDEX = b"link"
"""Name of the extension of an index whose entries are in another file."""
_PLAIN_INDEXES = (b"DIRC\0\0\0\2", b"DIRC\0\0\0\3")
"""Beginnings of the versions of the index that contain whole paths; the fourth shortens them."""
DVC_FOLDER = Path(".dvc")
MAX_LISTED_FILES = 3


@dataclass(frozen=True)
class GitObject:
    """A commit or a file."""

    sha: str
    kind: str
    content: bytes


def list_tracked_files(folder: Path) -> dict[Path, bool]:
    """Return whether it is a link for each file below *folder* in git's index; empty without a repository.

    The paths are relative to *folder*. Raises `StageError` if git cannot read the repository.
    """
    if _find_repository(folder) is None:
        return {}
    listed = run_git(folder, "ls-files", "-z", "--stage")
    entries = (line.partition("\t") for line in listed.split("\0") if line)
    return {Path(name): entry.startswith(_LINK_MODE) for entry, _, name in entries}


def may_track(folder: Path, names: Sequence[str]) -> bool:
    """Return False if git's index certainly has no link, and no path with one of *names* in it.

    The index itself is searched: a process of git takes longer than all else that a light command does.
    """
    repository = _find_repository(folder)
    if repository is None:
        return False
    try:
        index = read_regular(repository / "index")
    except OSError:  # none yet, or in another folder, as for a worktree
        return True
    signs = (_LINK_ENTRY, _SHARED_INDEX, *(name.encode() for name in names))
    return not index.startswith(_PLAIN_INDEXES) or any(sign in index for sign in signs)


def _find_repository(folder: Path) -> Path | None:
    folders = (folder.absolute(), *folder.absolute().parents)
    return next((parent / ".git" for parent in folders if (parent / ".git").exists()), None)


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
    return _run(folder, arguments, text=True, stdin=subprocess.DEVNULL)


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


def complete_history(root: Path) -> None:
    """Fetch the history, and the experiments, that a shallow clone in *root* lacks.

    DVC records no experiment in a shallow clone. Raises `StageError` if the history cannot be fetched.
    """
    if not _is_shallow(root):
        return
    fetched = try_git(root, "fetch", "--quiet", "--unshallow")
    if _is_shallow(root):
        reason = fetched.stderr.strip() or "it has no remote"
        raise StageError(
            f"{root} is a shallow clone, in which DVC records no experiment, and its history cannot be "
            f"fetched: {reason}. Run `git fetch --unshallow`"
        )
    try_git(root, "fetch", "--quiet", "origin", "+refs/exps/*:refs/exps/*")  # a run may resume from one


def _is_shallow(root: Path) -> bool:
    return run_git(root, "rev-parse", "--is-shallow-repository").strip() == "true"


def read_objects(folder: Path, names: Sequence[str]) -> list[GitObject | None]:
    """Return the object of each of *names* in the repository *folder*; None for a missing object.

    A name is a SHA, or ``SHA:path`` for a file. One process reads all objects: starting one for each, or a
    reader of scmrepo, takes most of the time of a long comparison. Raises `StageError` if git fails.
    """
    requested = "".join(f"{name}\n" for name in names)
    done = _run(folder, ["cat-file", "--batch"], input=requested.encode())
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise StageError(f"git cannot read {folder}: {reason}. Run `git fsck` in that folder")
    return _parse_objects(done.stdout, len(names))


def commit_time(commit: GitObject) -> datetime:
    """Return the time of *commit*, in the time zone of its committer."""
    header = commit.content.partition(b"\n\n")[0].decode("utf-8", errors="replace")
    [line] = [line for line in header.split("\n") if line.startswith("committer ")]
    seconds, zone = line.rsplit(" ", 2)[1:]
    return datetime.fromtimestamp(int(seconds), datetime.strptime(zone, "%z").tzinfo)


def _run(folder: Path, arguments: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=False, **options)  # noqa: S603  no shell
    except OSError as error:
        raise StageError(f"git cannot be started ({error.strerror}). Install git") from error


def _parse_objects(output: bytes, count: int) -> list[GitObject | None]:
    """Return the *count* objects in the *output* of ``git cat-file --batch``."""
    by_sha: dict[str, GitObject] = {}
    """Runs have most of their files in common."""
    objects: list[GitObject | None] = []
    start = 0
    while len(objects) < count:
        end = output.index(b"\n", start)
        header = output[start:end].decode("utf-8", errors="replace")
        start = end + 1
        if header.endswith((" missing", " ambiguous")):
            objects.append(None)
            continue
        sha, kind, size = header.split()
        if sha not in by_sha:
            by_sha[sha] = GitObject(sha, kind, output[start : start + int(size)])
        objects.append(by_sha[sha])
        start += int(size) + 1
    return objects


def check_delivered_files() -> None:
    """Raise `StageError` if git tracks files of the state of this project, or another user has written them.

    Also raise it if git tracks a link in the folder of DVC, or a link to a device, which may have no end.
    """
    runs, dvc = runs_root().absolute(), find_above(DVC_FOLDER).absolute()
    if os.path.lexists(runs):
        _check_owner(runs)
    refused = []
    for root in {path.parent for path in (runs, dvc) if os.path.lexists(path)}:
        if may_track(root, (RUNS_FOLDER, ".dvc/tmp")):
            tracked = list_tracked_files(root).items()
            refused += [str(path) for path, is_link in tracked if _is_refused(root, path, is_link=is_link)]
    if refused:
        raise StageError(
            f"git tracks {join_names(refused, MAX_LISTED_FILES)}: files that only runs on this machine may "
            "write, or links in their place or to devices. Find out who has added them, run "
            "`git rm -r --cached` for them, and remove them"
        )


def _is_refused(root: Path, path: Path, *, is_link: bool) -> bool:
    first, *below = path.parts
    if first == RUNS_FOLDER or (first == DVC_FOLDER.name and (is_link or below[:1] == ["tmp"])):
        return True
    place = root / path
    return is_link and place.exists() and not (place.is_file() or place.is_dir())


def _check_owner(runs: Path) -> None:
    """Raise `StageError` if a file of *runs* belongs neither to this user, the project's, nor its group."""
    project = runs.parent.stat()
    owners = {os.geteuid(), project.st_uid}
    shared = project.st_gid if project.st_mode & stat.S_ISGID else None
    for path, about in _list_state(runs):
        if about.st_uid not in owners and about.st_gid != shared:
            raise StageError(
                f"{path} belongs to user {about.st_uid}, neither to you nor to the owner of this folder. Run "
                "in your own clone, or remove it"
            )


def _list_state(runs: Path) -> Iterator[tuple[Path, os.stat_result]]:
    yield runs, runs.lstat()
    if runs.is_dir():
        with os.scandir(runs) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # the watchdog of an earlier command has removed its claim
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
