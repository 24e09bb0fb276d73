"""Watchdog that repairs dvc.lock, the rwlock and params.yaml if the process that it watches is killed.

DVC records a stage after the process of the stage has exited. If DVC is killed at that moment, its next
command refuses to start before it runs any code of this project. DVC also leaves the files to which it was
copying, which the watchdog removes. It is forked while this process is small, or started as a program if this
process has threads, and exits after the process that it watches.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.engine.params_journal import restore_idle_params
from pipeline.engine.process_tree import open_process, wait_for_exit
from pipeline.project.cache import OBJECTS, find_cache
from pipeline.project.lockfile import (
    MIN_TEMPORARY_FILE_AGE_SECONDS,
    TEMPORARY,
    back_up_lockfile,
    remove_empty_entries,
    remove_temporary_files,
    repair_lockfiles,
    try_dvc_lock,
)
from pipeline.project.paths import read_paths
from stages.contracts.errors import StageError
from stages.runs.layout import RUNS_FOLDER, watchdog_claim
from stages.system.file_lock import open_lock, try_lock
from stages.system.files import is_below
from stages.system.processes import module_command


def fork_watchdog(pid: int) -> None:
    """Back up dvc.lock, and fork a watchdog that repairs the project as soon as process *pid* has exited."""
    back_up_lockfile()
    Path(RUNS_FOLDER).mkdir(exist_ok=True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()  # a signal to DVC's process group must not end the watchdog
        if os.fork() == 0:
            _detach()
            _wait_and_repair(pid)
    finally:
        os._exit(0)


def start_watchdog(pid: int) -> None:
    """Start a process that repairs the project in this folder as soon as process *pid* has exited.

    Unlike `fork_watchdog` this does not fork, so a process with threads can call it.
    """
    subprocess.Popen(  # noqa: S603  no shell
        module_command("pipeline.engine.watchdog", str(pid)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to the process group of *pid* must not end it
    )


def _detach() -> None:
    """Release the locks, pipes and signal handlers that this process inherited."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))


def _wait_and_repair(pid: int) -> None:
    """Wait until process *pid* has exited, and repair the project.

    One watchdog for each process is enough: the first one claims it, and later ones exit at once.
    """
    claim = watchdog_claim(pid)
    with suppress(OSError), os.fdopen(open_lock(claim), "r+") as file:
        if not try_lock(file):
            return
        with suppress(ProcessLookupError):
            wait_for_exit([open_process(pid)])
        repair_lockfiles()
        remove_empty_entries()
        back_up_lockfile()
        restore_idle_params()
        _remove_temporary_files()
        claim.unlink()


def _remove_temporary_files() -> None:
    """Remove the files to which DVC was copying when it failed or was killed.

    Those in the cache must be old, because an experiment in a copy of the project may be writing there.
    """
    with suppress(OSError, StageError), try_dvc_lock(TEMPORARY / "lock") as is_free:
        folders = {path.parent for path in read_paths().values() if is_below(path, Path())}
        for folder in folders if is_free else ():
            remove_temporary_files(folder)
    cache = find_cache(TEMPORARY.parent)
    for folder in cache.glob(f"{OBJECTS}/??") if cache else ():
        with suppress(OSError):
            remove_temporary_files(folder, time.time() - MIN_TEMPORARY_FILE_AGE_SECONDS)


if __name__ == "__main__":
    _wait_and_repair(int(sys.argv[1]))
