"""A small process that stays until DVC has ended, and mends what that tore if it was killed.

A stage of ours has ended when DVC records it. Where DVC is killed then, its next command would refuse to
begin, before any code of ours runs. The process is forked while this one is still small, and is gone a
moment after DVC is.
"""

import fcntl
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from pipeline.orphans import is_alive
from pipeline.torn import keep_lock, mend

CLAIMS = Path(".runs")


def take_care(pid: int) -> None:
    """Keep dvc.lock as it is, and have a process mend it as soon as process *pid* has ended."""
    keep_lock()
    CLAIMS.mkdir(exist_ok=True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()  # so that no signal to DVC's group ends it too
        if os.fork() == 0:
            _detach()
            _wait_and_mend(pid)
    finally:
        os._exit(0)


def _detach() -> None:
    """Hold nothing of the process it comes from: no lock, no pipe, no handler."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))


def _wait_and_mend(pid: int) -> None:
    """One for each DVC is enough: the first claims it, and those of later stages go."""
    claim = CLAIMS / f"caretaker-{pid}"
    with suppress(OSError), claim.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _wait(pid)
        mend()
        keep_lock()
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
