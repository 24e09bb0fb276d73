"""Termination of this process with the process that started it, such as DVC.

DVC starts the command of a stage through a shell, which may stay as a process between the two. If DVC is
killed, the command receives no signal: it would continue to train, and its outputs would be in the way of the
next `dvc repro`.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from signal import SIGTERM

from pipeline.engine.signals import request_parent_death_signal
from pipeline.project.lockfile import RWLOCK, read_owners
from pipeline.project.paths import find_above
from stages.system.processes import ancestors, is_alive

STAGE_VARIABLE = "DVC_STAGE"
POLL_SECONDS = 0.2


def is_dvc_stage(name: str) -> bool:
    """Return whether DVC started this process as its stage *name*, of any dvc.yaml."""
    return os.environ.get(STAGE_VARIABLE, "").rpartition(":")[2] == name


def ancestors_up_to_dvc() -> list[int]:
    """Return the processes that wait for this one, nearest first, up to the one that DVC runs in.

    If DVC's process is not among them, because it has exited or did not start this one, return the parent
    only.
    """
    pids = ancestors()
    owners = _dvc_writers()
    places = [place for place, pid in enumerate(pids) if pid in owners]
    return pids[: places[0] + 1] if places else pids[:1]


def find_dvc(pids: Sequence[int]) -> int | None:
    """Return the one of *pids* that DVC runs in; None if DVC has exited or did not start this process."""
    return next(iter(_dvc_writers() & set(pids)), None)


def terminate_with(pids: Sequence[int]) -> None:
    """Send SIGTERM to this process as soon as one of *pids* exits, or at once if one has exited.

    *pids* are its `ancestors_up_to_dvc`. If DVC has exited already, the signal is sent at once too.
    """

    def are_there() -> bool:
        writers = _dvc_writers()
        return ancestors_up_to_dvc() == list(pids) and (not writers or not writers.isdisjoint(pids))

    request_parent_death_signal(SIGTERM)
    _watch(pids, are_there)


def terminate_with_parent(parent: int) -> None:
    """Send SIGTERM to this process as soon as its parent process *parent* exits, or at once if it has."""
    request_parent_death_signal(SIGTERM)
    terminate_once_with_parent(parent)


def terminate_once_with_parent(parent: int) -> None:
    """Do the same with exactly one SIGTERM, for a process whose handler must not run twice."""
    _watch([parent], lambda: os.getppid() == parent)


def _dvc_writers() -> set[int]:
    """Return the processes that write outputs of this project now, according to DVC's rwlock."""
    path = find_above(RWLOCK)
    for _ in range(100):
        owners = read_owners(path, writers_only=True)
        if owners is not None:
            return set(owners)
        time.sleep(0.02)  # DVC is writing the file
    return set()


def _watch(pids: Sequence[int], are_there: Callable[[], bool]) -> None:
    try:
        handles = [open_process(pid) for pid in pids]
    except ProcessLookupError:
        handles = []
    if handles and are_there():  # otherwise one has exited, and its number may be in use again
        threading.Thread(target=_terminate_after, args=(handles,), daemon=True).start()
    else:
        _terminate()


def open_process(pid: int) -> int:
    """Return a descriptor of process *pid* that can be read when it has exited.

    On a kernel without descriptors of processes it is that of a pipe. Raises `ProcessLookupError` if the
    process does not exist.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        handle, writer = os.pipe()
        threading.Thread(target=_write_after_exit, args=(pid, writer), daemon=True).start()
        return handle


def _write_after_exit(pid: int, writer: int) -> None:
    while is_alive(pid):
        time.sleep(POLL_SECONDS)
    os.write(writer, b"0")
    os.close(writer)


def wait_for_exit(handles: Sequence[int]) -> None:
    """Wait until one of the processes with the descriptors *handles* has exited."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    poll.poll()


def _terminate_after(handles: Sequence[int]) -> None:
    wait_for_exit(handles)
    _terminate()


def _terminate() -> None:
    os.kill(os.getpid(), SIGTERM)
