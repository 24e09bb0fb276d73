"""The start of the process of a rank, which then becomes the command of the rank.

``python -m pipeline.engine.rank_process PARENT LOG_FOLDER FIRST COMMAND...`` prepares what a process
inherits when it executes another program, and executes *COMMAND*. The ranks from *FIRST* on, 0 or 1, write to
log files.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import NoReturn

from pipeline.engine.parent_death import request_parent_death_signal
from pipeline.error_reports import REPORT_VARIABLE

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables with the interface on which the ranks listen for each other."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Prepare this process for its rank, and execute the command in *arguments*."""
    parent, folder, first, *command = int(arguments[0]), Path(arguments[1]), int(arguments[2]), *arguments[3:]
    _exit_with(parent)
    rank = int(os.environ["RANK"])
    os.environ[REPORT_VARIABLE] = str(report_of(folder, rank))
    for variable in INTERFACE_VARIABLES:
        os.environ.setdefault(variable, "lo")  # all ranks are on this host
    if rank >= first:
        _write_to(log_of(folder, rank), *([1] if rank == 0 else [1, 2]))
    os.execvp(command[0], command)  # noqa: S606  no shell


def is_rank() -> bool:
    """Return whether this process is a rank of a stage whose project another process has locked."""
    return REPORT_VARIABLE in os.environ or os.environ.get("RANK", "0") != "0"


def accept_termination() -> None:
    """Let SIGTERM through to the handlers of this process; one that arrived before is handled now.

    The launcher starts a rank with SIGTERM blocked, because a rank that exits before all ranks can agree on a
    step would leave the others waiting for it. Call it in the main thread, once the ranks are connected and a
    handler is installed. In another process than a rank's it has no effect.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGTERM])


def log_of(folder: Path, rank: int) -> Path:
    """Return the file with the output of *rank*; rank 0 may have none."""
    return folder / f"{rank}.log"


def report_of(folder: Path, rank: int) -> Path:
    """Return the file with the error of *rank*."""
    return folder / f"{rank}.error.json"


def _exit_with(parent: int) -> None:
    """Have the kernel kill this process when the thread of *parent* that started it ends."""
    request_parent_death_signal(SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), SIGKILL)


def _write_to(log: Path, *descriptors: int) -> None:
    """Let the *descriptors* write to *log*, and standard input read nothing."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    for each in descriptors:
        os.dup2(output, each)
    os.close(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    main(sys.argv[1:])
