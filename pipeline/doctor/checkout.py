"""Leftovers of a killed `dvc exp run` in the user's checkout, and of a killed git.

DVC stashes the user's changes, detaches HEAD, applies the overrides, stages them with its own file, stashes
that as the experiment, and then undoes all of it. Meanwhile its list of writers has an entry ``workspace``.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.diagnostics import Diagnostic, ok, problem, warning
from pipeline.doctor.stale_files import remove_ended_processes
from pipeline.engine.git import run_git, try_git
from pipeline.engine.process_tree import is_alive
from stages.contracts.errors import StageError

DOCTOR = "`learner doctor --fix` does it"
BACKUP = "learner doctor: before the repair"
LOCKS = ("*.lock", "refs/**/*.lock", "objects/??/*.lock")
PARTS = re.compile(r"\.[A-Za-z0-9_-]{22}\.tmp")
"""Names of the files with which DVC tests links, and that it copies to before it renames."""
EXPERIMENT = "refs/exps/stash"
TEMPORARY = "refs/exps/temp"
"""Where DVC has the references with which it copies an experiment to its folder."""
STASH = "refs/stash"
SETTLED_SECONDS = 2.0
"""Age from which a lock file without a process is stale."""
PART_SECONDS = 600.0
STASH_SECONDS = 120
"""Greatest difference between the time of DVC's stash and that of its list of writers."""
_MOVED = re.compile(r"checkout: moving from (\S+) to [0-9a-f]{40}")


def check_checkout() -> Iterator[Diagnostic]:
    """Yield a finding for each leftover in the git repository of this folder."""
    asked_top = try_git(Path(), "rev-parse", "--show-toplevel")
    if asked_top.returncode:
        return
    top = Path(asked_top.stdout.strip())
    if pids := find_git_processes(top):
        yield ok("git", f"pid {', '.join(map(str, pids))} uses this repository now")
        return
    found = [*_locks(top), *_experiments(top), *_references(top), *_parts(top)]
    yield from found or [ok("git", "no leftovers of killed processes")]


def find_git_processes(top: Path) -> list[int]:
    """Return the processes of git and DVC, other than those of this one, that work below *top*."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            words = [Path(each).name for each in (entry / "cmdline").read_text().split("\0")[:4]]
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            own = os.getpid() in (int(entry.name), parent)
            if not own and {"git", "dvc"} & set(words) and (entry / "cwd").readlink().is_relative_to(top):
                found.append(int(entry.name))
    return found


def _locks(top: Path) -> Iterator[Diagnostic]:
    folder = top / run_git(top, "rev-parse", "--git-common-dir").strip()
    for lock in sorted({path for pattern in LOCKS for path in folder.glob(pattern)}):
        what = f"{lock} was left by a killed process: git and DVC refuse to work"
        cure = f"rm {lock}"
        if Path("/proc/self").exists():
            yield problem("git", what, f"{cure}: {DOCTOR}", partial(_remove_lock, lock, top))
        else:
            yield problem("git", what, f"{cure}, if no git or DVC runs")


def _remove_lock(lock: Path, top: Path) -> None:
    with suppress(FileNotFoundError):
        inode = lock.stat().st_ino
        time.sleep(max(0.0, SETTLED_SECONDS - (time.time() - lock.stat().st_mtime)))
        if not find_git_processes(top) and lock.stat().st_ino == inode:
            lock.unlink()


@dataclass(frozen=True)
class _Interrupted:
    """An experiment whose DVC was killed while it had changed the checkout."""

    branch: str | None
    """Branch that HEAD was on; None if HEAD is as it was."""
    stash: str | None
    """Commit of the user's changes; None if nothing was changed."""
    changed: tuple[str, ...]
    """Tracked files, relative to the top level, that the user or DVC changed and git has not stored."""


def _experiments(top: Path) -> Iterator[Diagnostic]:
    try:
        temporary = Path(Repo.find_dvc_dir()) / "tmp"
    except DvcException:
        return
    with suppress(StageError):  # of git, for example because of a lock file: then that is the finding
        found = _interrupted(top, temporary)
        if found:
            yield _finding(top, temporary, found)
        queued = try_git(top, "rev-parse", "--verify", "--quiet", EXPERIMENT).stdout.strip()
        if queued:
            what = (
                f"{EXPERIMENT} has the experiment {queued[:7]} of a killed DVC, which the next one would run"
            )
            cure = f"git update-ref -d {EXPERIMENT}: {DOCTOR}"
            yield problem("git", what, cure, partial(_delete, top, [EXPERIMENT]))


def _interrupted(top: Path, temporary: Path) -> _Interrupted | None:
    arguments = (temporary / "repro.dat").resolve()
    listed = run_git(top, "ls-files", "-z", "--", str(arguments)) if arguments.is_relative_to(top) else ""
    times = [each for each in (_writer_time(temporary), _time(arguments) if listed else None) if each]
    if not times:
        return None
    stash, branch = _stash_of(top, max(times)), _branch_before(top)
    if stash is None and branch is None and not listed:
        return None  # DVC had not begun, or had undone everything
    unstaged = filter(None, run_git(top, "diff", "--name-only", "-z").split("\0"))
    changed = [each for each in unstaged if not _is_stored(top, each)]
    return _Interrupted(branch, stash, tuple(changed))


def _is_stored(top: Path, name: str) -> bool:
    """Return whether git has the content of the file *name*, as after DVC began to stage it."""
    hashed = try_git(top, "hash-object", "--", name)
    return hashed.returncode == 0 and try_git(top, "cat-file", "-e", hashed.stdout.strip()).returncode == 0


def _writer_time(temporary: Path) -> float | None:
    """Return when DVC noted that it writes the checkout, if that process has ended."""
    path = temporary / "exps/rwlock"
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        writer = json.loads(path.read_text())["write"]["workspace"]
        return None if is_alive(int(writer["pid"])) else path.stat().st_mtime
    return None


def _time(path: Path) -> float | None:
    with suppress(OSError):
        return path.stat().st_mtime
    return None


def _stash_of(top: Path, around: float) -> str | None:
    """Return the newest stash if it is based on HEAD and DVC made it at the time *around*."""
    listed = try_git(top, "log", "-1", "-g", "--format=%H %ct %P%n%gs", STASH, "--").stdout.splitlines()
    if len(listed) < 2 or listed[1] == BACKUP:
        return None
    commit, seconds, base = listed[0].split()[:3]
    is_of_head = base == run_git(top, "rev-parse", "HEAD").strip()
    return commit if is_of_head and abs(int(seconds) - around) <= STASH_SECONDS else None


def _branch_before(top: Path) -> str | None:
    """Return the branch that HEAD was on, if DVC's detaching it is the last that happened to HEAD."""
    if try_git(top, "symbolic-ref", "--quiet", "HEAD").returncode == 0:
        return None
    moved = _MOVED.fullmatch(try_git(top, "log", "-1", "-g", "--format=%gs", "HEAD", "--").stdout.strip())
    if moved is None:
        return None
    tip = try_git(top, "rev-parse", "--verify", "--quiet", f"refs/heads/{moved[1]}").stdout
    return moved[1] if tip == run_git(top, "rev-parse", "HEAD") else None


def _finding(top: Path, temporary: Path, found: _Interrupted) -> Diagnostic:
    what = "a killed `dvc exp run` left this checkout changed"
    if found.branch:
        what += f"; HEAD was on branch {found.branch}"
    if found.stash:
        what += f"; your changes are in stash {found.stash[:7]}"
    elif found.changed:
        cure = (
            f"see `git diff {' '.join(found.changed)}`: values of its -S are in it, or edits of yours. Then "
            f"`git restore --staged --worktree FILE` those of its -S, "
            f"`git rm -f --cached .dvc/tmp/repro.dat`, and `git switch {found.branch or 'BRANCH'}`"
        )
        return problem("git", what, cure)
    kept = f"what is changed now is kept as a git stash, '{BACKUP}'"
    return problem("git", what, f"{DOCTOR}; {kept}", partial(_restore, top, temporary, found))


def _restore(top: Path, temporary: Path, found: _Interrupted) -> None:
    """Undo what DVC did, in an order in which a kill or an error loses nothing."""
    if find_git_processes(top) or _interrupted(top, temporary) != found:
        return
    target = found.stash or "HEAD"
    _back_up(top, target)
    if found.branch:
        run_git(
            top, "symbolic-ref", "-m", "learner doctor: restore HEAD", "HEAD", f"refs/heads/{found.branch}"
        )
    run_git(top, "restore", f"--source={target}", "--staged", "--worktree", ":/")
    if found.stash:
        run_git(top, "read-tree", f"{found.stash}^2")
        try_git(top, "update-index", "-q", "--refresh")
        entries = run_git(top, "log", "-g", "--format=%H", STASH, "--").split()
        run_git(top, "stash", "drop", "--quiet", f"stash@{{{entries.index(found.stash)}}}")
    (temporary / "repro.dat").unlink(missing_ok=True)
    remove_ended_processes(temporary / "exps/rwlock")


def _back_up(top: Path, target: str) -> None:
    """Store a stash of the changes, unless they are those of *target*."""
    try_git(top, "update-index", "-q", "--refresh")
    saved = run_git(top, "stash", "create", BACKUP).strip()
    if saved and try_git(top, "diff", "--quiet", saved, target).returncode:
        run_git(top, "stash", "store", "--message", BACKUP, saved)


def _references(top: Path) -> Iterator[Diagnostic]:
    names = try_git(top, "for-each-ref", "--format=%(refname)", TEMPORARY).stdout.split()
    if names:
        what = f"{TEMPORARY} has {len(names)} references of a killed DVC, which nothing reads again"
        yield warning("git", what, f"git update-ref -d each: {DOCTOR}", partial(_delete, top, names))


def _delete(top: Path, references: list[str]) -> None:
    if not find_git_processes(top):
        for each in references:
            run_git(top, "update-ref", "-d", each)


def _parts(top: Path) -> Iterator[Diagnostic]:
    """Find files of DVC's tests of links, and those that it was copying, in the project and in its cache."""
    try:
        with Repo() as repo:
            root, cache = Path(repo.root_dir), Path(repo.cache.local_cache_dir)
    except DvcException:
        return
    places = [*root.glob(".*.tmp"), *cache.rglob(".*.tmp"), *(root / ".dvc/tmp").glob(".*.tmp")]
    old = [each for each in places if PARTS.fullmatch(each.name) and _age(each) > PART_SECONDS]
    if old:
        what = f"{len(old)} temporary files of a killed DVC: {', '.join(map(str, sorted(old)[:3]))}"
        yield warning("git", what, f"rm them: {DOCTOR}", partial(_remove_parts, top, old))


def _age(path: Path) -> float:
    return time.time() - (_time(path) or time.time())


def _remove_parts(top: Path, parts: list[Path]) -> None:
    if not find_git_processes(top):
        for each in parts:
            each.unlink(missing_ok=True)
