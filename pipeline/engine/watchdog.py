"""Watchdog that repairs what a killed process leaves: dvc.lock and rwlock, and overrides in params.yaml.

A stage of ours has exited when DVC records it. If DVC is killed then, its next command would refuse to
start, before any code of ours runs. The watchdog is forked while this process is still small, or started
as a program if this process has threads, and exits a moment after the process that it watches.
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.engine.lockfile_repair import back_up_lockfile, repair_lockfiles
from pipeline.engine.params_journal import restore_idle_params
from pipeline.engine.process_tree import is_alive
from stages.runs.layout import RUNS_FOLDER, watchdog_claim


def fork_watchdog(pid: int) -> None:
    """Keep dvc.lock as it is, and have a process repair it as soon as process *pid* has ended."""
    back_up_lockfile()
    Path(RUNS_FOLDER).mkdir(exist_ok=True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()  # so that no signal to DVC's group ends it too
        if os.fork() == 0:
            _detach()
            _wait_and_repair(pid)
    finally:
        os._exit(0)


def start_watchdog(pid: int) -> None:
    """Start a process that repairs the project in this folder as soon as process *pid* has exited.

    Unlike `fork_watchdog` this forks nothing, so it is safe in a process that has threads.
    """
    subprocess.Popen(  # noqa: S603  no shell
        [sys.executable, "-m", "pipeline.engine.watchdog", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that no signal to the group of *pid* ends it too
    )


def _detach() -> None:
    """Hold nothing of the process it comes from: no lock, no pipe, no handler."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))


def _wait_and_repair(pid: int) -> None:
    """One for each DVC is enough: the first claims it, and those of later stages go."""
    claim = watchdog_claim(pid)
    with suppress(OSError), claim.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _wait(pid)
        repair_lockfiles()
        back_up_lockfile()
        restore_idle_params()
        claim.unlink()


def _wait(pid: int) -> None:
    try:
        poll = select.poll()
        poll.register(os.pidfd_open(pid), select.POLLIN)
        poll.poll()
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or an old one
        while is_alive(pid):
            time.sleep(0.2)


if __name__ == "__main__":
    _wait_and_repair(int(sys.argv[1]))
