"""Checks of the git checkout: changes and files that a killed `dvc exp run` or a killed git did not undo.

DVC stashes the user's changes, detaches HEAD, applies the overrides, stages them with a file of its own,
stashes that as the experiment, and then undoes all of it. During that time its list of writers has an entry
``workspace``.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.diagnostics import FIX, Diagnostic, ok, problem, warning
from pipeline.doctor.stale_files import find_temporary_folder, repair_rwlock
from pipeline.project.git import EXPERIMENT_ARGUMENTS, find_top, run_git, try_git
from pipeline.project.lockfile import MIN_TEMPORARY_FILE_AGE_SECONDS, find_temporary_files
from stages.contracts.errors import StageError
from stages.system.files import is_below, read_json_value, read_modification_time
from stages.system.processes import command_of, is_alive, parent_of, pids_below

BACKUP = "learner doctor: before the repair"
"""Message of the stash that keeps the state before a repair."""
LOCK_PATTERNS = ("*.lock", "refs/**/*.lock", "objects/??/*.lock")
EXPERIMENT_REF = "refs/exps/stash"
"""Reference of the experiments that DVC is about to run."""
TEMPORARY_REFS = "refs/exps/temp"
"""Prefix of the references with which DVC copies an experiment to its folder."""
STASH_REF = "refs/stash"
MIN_LOCK_AGE_SECONDS = 2.0
"""Age from which a lock file without a process is stale."""
MAX_STASH_DELAY_SECONDS = 120
"""Greatest difference between the time of DVC's stash and that of its list of writers."""
MAX_LISTED_FILES = 3
_DETACHED = re.compile(r"checkout: moving from (\S+) to [0-9a-f]{40}")


def check_checkout() -> Iterator[Diagnostic]:
    """Check the git repository of this folder, unless a process of git or DVC is using it."""
    top = find_top(Path())
    if top is None:
        return
    if pids := find_git_processes(top):
        yield ok("git", f"pid {', '.join(map(str, pids))} is using this repository")
        return
    diagnostics = [
        *_check_locks(top),
        *_check_experiments(top),
        *_check_references(top),
        *_check_temporary_files(top),
    ]
    yield from diagnostics or [ok("git", "no stale files of killed processes")]


def find_git_processes(top: Path) -> list[int]:
    """Return the processes of git and DVC in *top* or below, except for this process and its children.

    Those in other worktrees of the repository, which share its references, count too.
    """
    return [
        pid
        for pid in pids_below(top, *_list_worktrees(top))
        if os.getpid() not in (pid, parent_of(pid))
        and {"git", "dvc"} & {Path(word).name for word in command_of(pid)[:4]}
    ]


def _find_git_folders(top: Path) -> tuple[Path, Path]:
    """Return the folder that all worktrees of the repository share, and that of the worktree *top*."""
    shared, own = run_git(top, "rev-parse", "--git-common-dir", "--git-dir").splitlines()
    return (top / shared).resolve(), (top / own).resolve()


def _list_worktrees(top: Path) -> Iterator[Path]:
    """Yield the top-level folder of each worktree of the repository of *top*."""
    shared, _ = _find_git_folders(top)
    if shared.name == ".git":
        yield shared.parent
    for link in shared.glob("worktrees/*/gitdir"):
        with suppress(OSError):  # git has just removed it
            yield (link.parent / os.fsdecode(link.read_bytes()).removesuffix("\n")).parent


def _check_locks(top: Path) -> Iterator[Diagnostic]:
    folders = _find_git_folders(top)
    locks = {path for folder in folders for pattern in LOCK_PATTERNS for path in folder.glob(pattern)}
    for lock in sorted(locks):
        message = f"{lock} is the lock file of a killed process, and commands of git and DVC fail"
        yield problem("git", message, f"rm {lock}: {FIX}", partial(_remove_lock, lock, top))


def _remove_lock(lock: Path, top: Path) -> None:
    with suppress(FileNotFoundError):
        inode = lock.stat().st_ino
        if _age(lock) < MIN_LOCK_AGE_SECONDS:  # also if the clock was set back since
            time.sleep(MIN_LOCK_AGE_SECONDS)
        if not find_git_processes(top) and lock.stat().st_ino == inode:
            lock.unlink()


@dataclass(frozen=True)
class _InterruptedRun:
    """A checkout that DVC had changed for an experiment when it was killed."""

    branch: str | None
    """Branch that HEAD was on; None if DVC has not moved HEAD."""
    stash: str | None
    """Commit with the user's changes; None if there were none."""
    changed: tuple[str, ...]
    """Tracked files, relative to the top level, that the user or DVC changed and git has not stored."""


def _check_experiments(top: Path) -> Iterator[Diagnostic]:
    temporary = find_temporary_folder()
    with suppress(StageError):  # raised by git, for example because of a lock file, which is reported
        run = _find_interrupted_run(top, temporary)
        if run:
            yield _describe(top, temporary, run)
        queued = try_git(top, "rev-parse", "--verify", "--quiet", EXPERIMENT_REF).stdout.strip()
        if queued:
            message = (
                f"{EXPERIMENT_REF} has the experiment {queued[:7]} of a killed DVC; the next `dvc exp run` "
                "would run it"
            )
            remedy = f"git update-ref -d {EXPERIMENT_REF}: {FIX}"
            yield problem("git", message, remedy, partial(_delete_references, top, [EXPERIMENT_REF]))


def _find_interrupted_run(top: Path, temporary: Path) -> _InterruptedRun | None:
    arguments = (temporary / Path(EXPERIMENT_ARGUMENTS).name).resolve()
    listed = run_git(top, "ls-files", "-z", "--", str(arguments)) if arguments.is_relative_to(top) else ""
    times = [_read_writer_time(temporary), read_modification_time(arguments) if listed else 0.0]
    if not any(times):
        return None
    stash, branch = _find_stash(top, max(times)), _find_branch(top)
    if stash is None and branch is None and not listed:
        return None  # DVC had changed nothing yet, or had undone all of it
    unstaged = filter(None, run_git(top, "diff", "--name-only", "-z").split("\0"))
    changed = [name for name in unstaged if not _is_stored(top, name)]
    return _InterruptedRun(branch, stash, tuple(changed))


def _is_stored(top: Path, name: str) -> bool:
    """Return whether git has stored the content of the file *name*, which DVC does when it stages it."""
    hashed = try_git(top, "hash-object", "--", name)
    return hashed.returncode == 0 and try_git(top, "cat-file", "-e", hashed.stdout.strip()).returncode == 0


def _read_writer_time(temporary: Path) -> float:
    """Return when a DVC that has ended listed itself as the writer of the checkout.

    Return 0 if that process is running, or if the list has no writer.
    """
    path = temporary / "exps/rwlock"
    with suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
        writer = read_json_value(path)["write"]["workspace"]
        return 0.0 if is_alive(int(writer["pid"])) else path.stat().st_mtime
    return 0.0


def _find_stash(top: Path, timestamp: float) -> str | None:
    """Return the newest stash if it is based on HEAD and was created about *timestamp*; None otherwise."""
    listed = try_git(top, "log", "-1", "-g", "--format=%H %ct %P%n%gs", STASH_REF, "--").stdout.splitlines()
    if len(listed) < 2 or listed[1] == BACKUP:
        return None
    commit, seconds, base = listed[0].split()[:3]
    is_of_head = base == run_git(top, "rev-parse", "HEAD").strip()
    return commit if is_of_head and abs(int(seconds) - timestamp) <= MAX_STASH_DELAY_SECONDS else None


def _find_branch(top: Path) -> str | None:
    """Return the branch that HEAD was on if the last change of HEAD detached it; None otherwise."""
    if try_git(top, "symbolic-ref", "--quiet", "HEAD").returncode == 0:
        return None
    moved = _DETACHED.fullmatch(try_git(top, "log", "-1", "-g", "--format=%gs", "HEAD", "--").stdout.strip())
    if moved is None:
        return None
    tip = try_git(top, "rev-parse", "--verify", "--quiet", f"refs/heads/{moved[1]}").stdout
    return moved[1] if tip == run_git(top, "rev-parse", "HEAD") else None


def _describe(top: Path, temporary: Path, run: _InterruptedRun) -> Diagnostic:
    message = "a killed `dvc exp run` left this checkout changed"
    if run.branch:
        message += f"; HEAD was on branch {run.branch}"
    if run.stash:
        message += f"; your changes are in stash {run.stash[:7]}"
    elif run.changed:
        files = " ".join(map(quote, run.changed))
        remedy = (
            f"Run `git diff {files}`: it shows the values of -S, or edits of yours. Then run "
            f"`git restore --staged --worktree FILE` for the files with values of -S, "
            f"`git rm -f --cached {EXPERIMENT_ARGUMENTS}`, and `git switch {quote(run.branch or 'BRANCH')}`"
        )
        return problem("git", message, remedy)
    remedy = f"{FIX}; it stores the present changes as a git stash, '{BACKUP}'"
    return problem("git", message, remedy, partial(_restore, top, temporary, run))


def _restore(top: Path, temporary: Path, run: _InterruptedRun) -> None:
    """Undo what DVC did, in an order that keeps all changes if this is interrupted."""
    if find_git_processes(top) or _find_interrupted_run(top, temporary) != run:
        return
    target = run.stash or "HEAD"
    _back_up(top, target)
    if run.branch:
        run_git(top, "symbolic-ref", "-m", "learner doctor: restore HEAD", "HEAD", f"refs/heads/{run.branch}")
    run_git(top, "restore", f"--source={target}", "--staged", "--worktree", ":/")
    if run.stash:
        run_git(top, "read-tree", f"{run.stash}^2")
        try_git(top, "update-index", "-q", "--refresh")
        entries = run_git(top, "log", "-g", "--format=%H", STASH_REF, "--").split()
        run_git(top, "stash", "drop", "--quiet", f"stash@{{{entries.index(run.stash)}}}")
    (temporary / Path(EXPERIMENT_ARGUMENTS).name).unlink(missing_ok=True)
    repair_rwlock(temporary / "exps/rwlock")


def _back_up(top: Path, target: str) -> None:
    """Store the changes as a stash, unless they equal *target*."""
    try_git(top, "update-index", "-q", "--refresh")
    saved = run_git(top, "stash", "create", BACKUP).strip()
    if saved and try_git(top, "diff", "--quiet", saved, target).returncode:
        run_git(top, "stash", "store", "--message", BACKUP, saved)


def _check_references(top: Path) -> Iterator[Diagnostic]:
    names = try_git(top, "for-each-ref", "--format=%(refname)", TEMPORARY_REFS).stdout.split()
    if names:
        message = f"{TEMPORARY_REFS} has {len(names)} references of a killed DVC that no command uses"
        yield warning(
            "git", message, f"git update-ref -d each: {FIX}", partial(_delete_references, top, names)
        )


def _delete_references(top: Path, names: list[str]) -> None:
    if not find_git_processes(top):
        for name in names:
            run_git(top, "update-ref", "-d", name)


def _check_temporary_files(top: Path) -> Iterator[Diagnostic]:
    """Find temporary files of DVC in the project, beside its outputs, and in its cache.

    DVC fails if a folder of its run-cache is empty, as after an error before it could write the entry there.
    """
    try:
        with Repo() as repo:
            root, cache = Path(repo.root_dir), Path(repo.cache.local_cache_dir)
            outputs = [path for out in repo.index.outs if is_below(path := Path(out.fs_path), root)]
            folders = {root, root / ".dvc/tmp", *(path.parent for path in outputs)}
    except DvcException:
        return
    folders.update(cache.glob("**/"))
    paths = [path for folder in folders for path in find_temporary_files(folder)]
    old = [path for path in paths if _age(path) > MIN_TEMPORARY_FILE_AGE_SECONDS]
    entries = cache.glob("runs/??/*/")  # folders only
    old += [path for path in entries if not any(path.iterdir()) and _age(path) > MIN_LOCK_AGE_SECONDS]
    if old:
        listed = ", ".join(map(str, sorted(old)[:MAX_LISTED_FILES]))
        message = f"{len(old)} temporary files and empty folders of a killed DVC: {listed}"
        yield warning("git", message, f"rm them: {FIX}", partial(_remove_temporary_files, top, old))


def _age(path: Path) -> float:
    """Return the seconds since *path* was modified; 0 if it is missing."""
    return time.time() - (read_modification_time(path) or time.time())


def _remove_temporary_files(top: Path, paths: list[Path]) -> None:
    if not find_git_processes(top):
        for path in paths:
            with suppress(OSError):  # DVC has removed or filled it
                path.rmdir() if path.is_dir() else path.unlink()
