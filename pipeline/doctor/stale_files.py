"""Checks of stale and damaged files: DVC's locks and cache, killed experiments, and run stores."""

import json
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from shlex import quote

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.diagnostics import FIX, Diagnostic, Level, ok, problem, warning
from pipeline.engine.params_journal import describe_open_journal, restore_idle_params
from pipeline.project.lockfile import (
    LOCKFILE,
    check_lockfile,
    has_intact_backup,
    is_truncated,
    read_owners,
    repair_lockfiles,
    try_dvc_lock,
)
from pipeline.project.paths import DVC_FOLDER, find_above, runs_root
from pipeline.project.revisions.dvc_checks import find_damaged_files
from stages.runs.layout import LOCKFILE_BACKUP, PROJECT_LOCK
from stages.runs.overview import State
from stages.runs.overview import runs as all_runs
from stages.system.file_lock import is_locked
from stages.system.files import read_json_value, write_text
from stages.system.processes import command_of, is_alive, read_start_time

RWLOCKS = (Path("rwlock"), Path("exps/rwlock"))
"""DVC's lists of the processes that read and write outputs, relative to its temporary folder."""
STANDALONE = Path("exps/standalone")
"""Folder of the experiments of `dvc exp run --temp`, relative to DVC's temporary folder."""
QUEUE = Path("exps/run")
"""Folder of the processes of DVC's queue, relative to its temporary folder."""
CLOCK_TOLERANCE_SECONDS = 2


def find_temporary_folder() -> Path:
    """Return DVC's temporary folder, which is missing if this is not a project of DVC."""
    return find_above(DVC_FOLDER) / "tmp"


def check_locks() -> Iterator[Diagnostic]:
    """Check dvc.lock and DVC's lists of readers and writers for damage and for entries of ended processes."""
    temporary = find_temporary_folder()
    diagnostics = [diagnostic for name in RWLOCKS for diagnostic in _check_rwlock(temporary / name)]
    if is_truncated(LOCKFILE):
        message = f"{LOCKFILE} is truncated, as by a kill or a full disk, and every DVC command fails"
        diagnostics.append(problem("locks", message, _describe_repair(), repair_lockfiles))
    else:
        check_lockfile(LOCKFILE)
    if PROJECT_LOCK.exists() and is_locked(PROJECT_LOCK):
        pid = (PROJECT_LOCK.read_text().split() or ["unknown"])[0]
        diagnostics.append(ok("locks", f"pid {pid} is running in this project ({PROJECT_LOCK})"))
    yield from diagnostics or [ok("locks", "no lock is held")]


def check_params_journal() -> Iterator[Diagnostic]:
    """Check that params.yaml does not have the overrides of a run that was killed."""
    if message := describe_open_journal():
        text, _, remedy = message.partition(". ")
        yield warning("journal", text, remedy, restore_idle_params)
    else:
        yield ok("journal", "params.yaml has no overrides of a killed run")


def _describe_repair() -> str:
    """Return what `repair_lockfiles` does with a truncated dvc.lock."""
    if has_intact_backup():
        return (
            f"`learner doctor --fix` restores it from {LOCKFILE_BACKUP}, the state before the last stage. "
            f"`git diff {LOCKFILE}` then shows the difference from the commit"
        )
    return (
        f"Run `git checkout {LOCKFILE}`. Without an intact {LOCKFILE_BACKUP}, `learner doctor --fix` "
        "removes it"
    )


def _check_rwlock(path: Path) -> Iterator[Diagnostic]:
    owners, repair = read_owners(path), partial(repair_rwlock, path)
    if owners is None:
        with _try_lock(path) as acquired:
            is_corrupt = acquired and read_owners(path) is None
        if is_corrupt:
            message = f"{path} is truncated, as by a kill or a full disk, and every DVC command fails"
            yield problem("locks", message, f"rm {path}: {FIX}", repair)
        else:
            yield ok("locks", f"a DVC process is writing {path}")
        return
    ended = [pid for pid in owners if not is_alive(pid)]
    reused = [pid for pid, command in owners.items() if is_alive(pid) and _is_reused(pid, command, path)]
    for pid, command in owners.items():
        if pid not in (*ended, *reused):
            yield ok("locks", f"pid {pid} is running in this project: {command}")
    if reused:
        message = f"{path} names pid {_join(reused)}, which another process has now: DVC waits for it forever"
        yield problem("locks", message, f"remove the entry: {FIX}", repair)
    elif ended:
        message = f"{path} names pid {_join(ended)}, which has ended"
        yield warning("locks", message, f"the next DVC command removes the entry, or {FIX}", repair)


def _try_lock(path: Path) -> AbstractContextManager[bool]:
    """Acquire the lock that DVC holds while it writes *path*; yield False if a DVC process has it."""
    return try_dvc_lock(path.with_name(f"{path.name}.lock"))


def repair_rwlock(path: Path) -> None:
    """Remove the entries of ended processes from DVC's list of readers and writers *path*.

    Remove the file if it is corrupt.
    """
    with _try_lock(path) as acquired:
        owners = read_owners(path) if acquired else {}
        if owners is None:
            path.unlink()
        if not owners:
            return
        ended = {
            pid for pid, command in owners.items() if not is_alive(pid) or _is_reused(pid, command, path)
        }
        content = read_json_value(path)
        write = {name: entry for name, entry in content.get("write", {}).items() if entry["pid"] not in ended}
        read = {
            name: remaining
            for name, several in content.get("read", {}).items()
            if (remaining := [entry for entry in several if entry["pid"] not in ended])
        }
        write_text(path, json.dumps({"write": write, "read": read}))


def _is_reused(pid: int, command: str, rwlock: Path) -> bool:
    """Return whether the process *pid* is not the one that wrote *command* to *rwlock*.

    It must have another command line and have started after *rwlock* was written: after the clock is set, a
    process may seem younger than it is. False if the process cannot be inspected.
    """
    arguments, words = command.split()[1:], command_of(pid)
    if words[len(words) - len(arguments) :] == arguments:
        return False
    started = read_start_time(pid)
    with suppress(OSError):
        return started is not None and started > rwlock.stat().st_mtime + CLOCK_TOLERANCE_SECONDS
    return False


def check_experiments() -> Iterator[Diagnostic]:
    """Check for killed experiments, and killed workers of the queue, that DVC shows as running."""
    temporary = find_temporary_folder()
    diagnostics = [*_check_standalone(temporary / STANDALONE), *_check_queue(temporary / QUEUE)]
    if all(diagnostic.level is Level.OK for diagnostic in diagnostics):
        diagnostics.append(ok("experiments", "no killed experiment is shown as running"))
    yield from diagnostics


def _check_standalone(root: Path) -> Iterator[Diagnostic]:
    for entry in sorted(root.glob("run/*/*.run")):
        with suppress(OSError, ValueError, TypeError, AttributeError):
            content = read_json_value(entry)
            name, folder = content.get("name") or entry.stem[:7], Path(str(content.get("root_dir", "")))
            if not folder.is_dir():
                continue  # DVC has removed the copy, and lists the experiment as finished
            pids = _pids_of_copy(folder)
            if any(map(is_alive, pids)) or _is_in_use(folder):
                yield ok("experiments", f"{name} is running in {folder}")
            elif pids:
                message = f"{name} is shown as running, but its process, pid {_join(pids)}, has ended"
                remedy = f"rm -r {quote(str(entry.parent))} {quote(str(folder))}: {FIX}"
                fix = partial(_remove_experiment, root, entry.parent, folder)
                yield warning("experiments", message, remedy, fix)
            else:
                message = f"{name} is about to run, or was killed before it ran"
                yield warning("experiments", message, f"examine {folder}")


def _check_queue(root: Path) -> Iterator[Diagnostic]:
    """Yield a warning for each killed worker of DVC's queue, which only the commands of the queue remove."""
    for entry in sorted(root.glob("*/*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            process = read_json_value(entry)
            if process["returncode"] is None and not is_alive(int(process["pid"])):
                name = read_json_value(entry.with_suffix(".run")).get("name") or entry.stem[:7]
                message = f"{name} is shown as running in the queue, but pid {process['pid']} has ended"
                remedy = f"dvc queue kill {quote(name)} && dvc queue remove {quote(name)}"
                yield warning("experiments", message, remedy)


def _pids_of_copy(folder: Path) -> set[int]:
    """Return the processes that the locks of the project copy *folder* name."""
    path = folder / ".dvc/tmp/rwlock"
    pids = set(read_owners(path) or {})
    for lock in (path.with_name("rwlock.lock"), path.with_name("lock")):
        with suppress(OSError, ValueError, IndexError):
            pids.add(int(lock.read_text().split()[0]))
    return pids


def _is_in_use(folder: Path) -> bool:
    """Return whether a stage runs in *folder*, or may be running there on another machine."""
    lock = folder / PROJECT_LOCK
    if not lock.exists():
        return False
    hosts = lock.read_text().split()[1:2]
    return is_locked(lock) or hosts not in ([], [socket.gethostname()])


def _remove_experiment(root: Path, entry: Path, folder: Path) -> None:
    if _is_in_use(folder) or any(map(is_alive, _pids_of_copy(folder))):
        return
    if folder.resolve().parent == root.resolve():  # remove only a copy that DVC made
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(entry, ignore_errors=True)


def check_run_stores() -> Iterator[Diagnostic]:
    """List the run stores, none of which is stale: the same command resumes an interrupted run."""
    stores = all_runs(runs_root())
    for run in stores:
        if run.is_stalled:
            message = f"{run.key}: pid {run.owner and run.owner.pid} has made no progress for a minute"
            yield warning("runs", message, "It may hang, or its steps are long: run `learner runs show`")
    resumable = [run.key for run in stores if run.state in (State.INTERRUPTED, State.KILLED)]
    more = f"; run the same command again to resume {', '.join(resumable)}" if resumable else ""
    counts = Counter(run.state.value for run in stores)
    listed = ", ".join(f"{count} {state}" for state, count in counts.items()) or "no run store"
    yield ok("runs", f"{listed}{more}")


def check_cache() -> Iterator[Diagnostic]:
    """Read every file in DVC's cache, and yield a problem for each that does not have its hash."""
    try:
        with Repo() as repo:
            folders = (repo.cache.local_cache_dir, str(repo.cache.legacy.path))  # and that of the run-cache
            roots = dict.fromkeys(Path(folder).resolve() for folder in folders)
    except DvcException:
        return
    damaged = [path for root in roots for path in find_damaged_files(root)]
    for path in damaged:
        message = f"{path} is damaged: its content does not have the hash in its name"
        remedy = (
            f"rm {quote(str(path))}: `learner doctor --deep --fix` does it. Then `dvc pull` fetches it, or "
            "the next run computes it again; data of your own that `dvc add` tracks must be added again"
        )
        yield problem("cache", message, remedy, partial(path.unlink, missing_ok=True))
    if not damaged:
        yield ok("cache", f"every file in {', '.join(map(str, roots))} is intact")


def _join(pids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(pids)))
