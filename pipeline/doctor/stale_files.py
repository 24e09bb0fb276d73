"""What killed processes left behind: which of it keeps others from their work, and which is of no matter."""

import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipeline.doctor.diagnostics import Diagnostic, Level, ok, problem, warning
from pipeline.engine.lockfile_repair import LOCKFILE, repair_lockfiles, try_dvc_lock
from pipeline.engine.process_tree import is_alive
from pipeline.lockfile import check_lockfile, is_truncated
from pipeline.project import runs_root
from stages.contracts.files import write_text
from stages.runs.layout import PROJECT_LOCK
from stages.runs.lock import is_held
from stages.runs.overview import Run, State
from stages.runs.overview import runs as all_runs

RWLOCKS = (Path("rwlock"), Path("exps/rwlock"))
GHOSTS = Path("exps/standalone")
QUEUED = Path("exps/run")
CLOCK_SECONDS = 2
DOCTOR = "`learner doctor --fix` does it"


def check_locks() -> Iterator[Diagnostic]:
    """DVC's lists of who reads and writes: entries of the dead, and lists that a kill left unreadable."""
    try:
        temporary = Path(Repo.find_dvc_dir()) / "tmp"
    except DvcException:
        return
    found = [each for name in RWLOCKS for each in _list_of(temporary / name)]
    if is_truncated(LOCKFILE):
        what = f"{LOCKFILE} is not whole, as after a kill or on a full disk, and DVC refuses to work"
        found.append(problem("locks", what, f"git checkout {LOCKFILE}: {DOCTOR}", repair_lockfiles))
    else:
        check_lockfile(LOCKFILE)
    if PROJECT_LOCK.exists() and is_held(PROJECT_LOCK):
        pid = (PROJECT_LOCK.read_text().split() or ["unknown"])[0]
        found.append(ok("locks", f"pid {pid} works in this project now ({PROJECT_LOCK})"))
    yield from found or [ok("locks", "nobody holds one")]


def _list_of(path: Path) -> Iterator[Diagnostic]:
    owners = _owners(path)
    if owners is None:
        with _guard(path) as free:
            broken = free and _owners(path) is None
        if broken:
            what = f"{path} is not whole, as after a kill or on a full disk, and DVC refuses to work"
            yield problem("locks", what, f"rm {path}: {DOCTOR}", partial(_remove_broken, path))
        else:
            yield ok("locks", f"a DVC writes {path} at this moment")
        return
    gone = [pid for pid in owners if not is_alive(pid)]
    taken = [pid for pid, command in owners.items() if is_alive(pid) and _is_another(pid, command, path)]
    for pid, command in owners.items():
        if pid not in (*gone, *taken):
            yield ok("locks", f"pid {pid} works in this project now: {command}")
    if taken:
        what = f"{path} names pid {_listed(taken)}, which is another process now: DVC waits for it for ever"
        yield problem("locks", what, f"take it out: {DOCTOR}", partial(remove_ended_processes, path))
    elif gone:
        what = f"{path} still names pid {_listed(gone)}, which is gone"
        yield warning(
            "locks",
            what,
            f"DVC's next command takes it out; or {DOCTOR}",
            partial(remove_ended_processes, path),
        )


def _owners(path: Path) -> dict[int, str] | None:
    """Who *path* names, and the command of each; None where it cannot be read as what DVC writes."""
    try:
        return {int(each["pid"]): str(each["cmd"]) for each in _entries(json.loads(path.read_text()))}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _entries(content: Any) -> Iterator[Any]:
    yield from content.get("write", {}).values()
    for several in content.get("read", {}).values():
        yield from several


def _guard(path: Path) -> AbstractContextManager[bool]:
    """Whether no DVC writes *path*, nor can as long as this is held."""
    return try_dvc_lock(path.with_name(f"{path.name}.lock"))


def _remove_broken(path: Path) -> None:
    with _guard(path) as free:
        if free and _owners(path) is None:
            path.unlink()


def remove_ended_processes(path: Path) -> None:
    """Remove the entries of ended processes from DVC's list of readers and writers *path*."""
    with _guard(path) as free:
        if not free or not (owners := _owners(path)):
            return
        gone = {pid for pid, each in owners.items() if not is_alive(pid) or _is_another(pid, each, path)}
        content = json.loads(path.read_text())
        write = {name: each for name, each in content.get("write", {}).items() if each["pid"] not in gone}
        read = {
            name: left
            for name, several in content.get("read", {}).items()
            if (left := [each for each in several if each["pid"] not in gone])
        }
        write_text(path, json.dumps({"write": write, "read": read}))


def _is_another(pid: int, command: str, noted_in: Path) -> bool:
    """Whether process *pid* began after *noted_in* was written, and is none of DVC's *command* either.

    Both, as a clock that is set makes a process seem younger. False where the system does not say it.
    """
    with suppress(OSError, ValueError, IndexError):
        arguments = command.split()[1:]
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
        if words[len(words) - len(arguments) :] == arguments:
            return False
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        [boot] = [line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")]
        began = int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
        return began > noted_in.stat().st_mtime + CLOCK_SECONDS
    return False


def check_experiments() -> Iterator[Diagnostic]:
    """What a killed `dvc exp run --temp`, or a killed worker of the queue, left: DVC shows it as running."""
    try:
        temporary = Path(Repo.find_dvc_dir()) / "tmp"
    except DvcException:
        return
    found = [*_ghosts_of_copies(temporary / GHOSTS), *_ghosts_of_queue(temporary / QUEUED)]
    if all(each.level is Level.OK for each in found):
        found.append(ok("experiments", "no ghost of a killed one"))
    yield from found


def _ghosts_of_copies(root: Path) -> Iterator[Diagnostic]:
    for note in sorted(root.glob("run/*/*.run")):
        with suppress(OSError, ValueError, TypeError, AttributeError):
            content = json.loads(note.read_text())
            name, folder = content.get("name") or note.stem[:7], Path(str(content.get("root_dir", "")))
            pids = _of_copy(folder)
            if any(map(is_alive, pids)) or _works(folder):
                yield ok("experiments", f"{name} is running in {folder}")
            elif pids:
                what = f"{name} is shown as running, and pid {_listed(pids)} that ran it is gone"
                cure = f"rm -r {note.parent} {folder}: {DOCTOR}"
                yield warning("experiments", what, cure, partial(_remove_ghost, root, note.parent, folder))
            else:
                yield warning("experiments", f"{name} is about to run, or was killed then", f"see {folder}")


def _ghosts_of_queue(root: Path) -> Iterator[Diagnostic]:
    """They are the queue's, and only its own commands clear them."""
    for note in sorted(root.glob("*/*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError):
            process = json.loads(note.read_text())
            if process["returncode"] is None and not is_alive(int(process["pid"])):
                name = json.loads(note.with_suffix(".run").read_text()).get("name") or note.stem[:7]
                what = f"{name} is shown as running in the queue, and pid {process['pid']} is gone"
                yield warning("experiments", what, f"dvc queue kill {name} && dvc queue remove {name}")


def _of_copy(folder: Path) -> set[int]:
    """Every process that the copy of a project in *folder* names."""
    path = folder / ".dvc/tmp/rwlock"
    found = set(_owners(path) or {})
    for lock in (path.with_name("rwlock.lock"), path.with_name("lock")):
        with suppress(OSError, ValueError, IndexError):
            found.add(int(lock.read_text().split()[0]))
    return found


def _works(folder: Path) -> bool:
    """Whether a stage is at work in *folder*, or was on another machine, of which nothing is known here."""
    lock = folder / PROJECT_LOCK
    if not lock.exists():
        return False
    hosts = lock.read_text().split()[1:2]
    return is_held(lock) or hosts not in ([], [socket.gethostname()])


def _remove_ghost(root: Path, note: Path, folder: Path) -> None:
    if _works(folder) or any(map(is_alive, _of_copy(folder))):
        return
    if folder.resolve().parent == root.resolve():  # a copy that DVC made there, and nothing else
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(note, ignore_errors=True)


def check_run_stores() -> Iterator[Diagnostic]:
    """The run stores: what was stopped can go on, so none is a leftover."""
    found = all_runs(runs_root())
    for run in found:
        if run.stalled:
            what = f"{run.key}: pid {run.owner and run.owner.pid} has not said anything for a minute"
            yield warning("runs", what, "it may hang, or its steps are long: `learner runs show`")
    waiting = [run.key for run in found if run.state in (State.INTERRUPTED, State.DEAD)]
    more = f"; {', '.join(waiting)} can go on: give the same command again" if waiting else ""
    yield ok("runs", f"{_counted(found)}{more}")


def _counted(found: Iterable[Run]) -> str:
    states = [run.state.value for run in found]
    kinds = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return ", ".join(kinds) or "no run store"


def _listed(pids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(pids)))
