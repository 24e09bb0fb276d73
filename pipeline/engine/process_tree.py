"""A stage that DVC started goes when DVC goes.

DVC starts a stage's command through a shell, which may or may not stay between. When DVC is killed, nobody
tells the command: it would train on, with its outputs in the way of the next `dvc repro`.
"""

import ctypes
import json
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM

from pipeline.engine.lockfile_repair import RWLOCK

STAGE_VARIABLE = "DVC_STAGE"
PR_SET_PDEATHSIG = 1


def is_dvc_stage(name: str) -> bool:
    """Whether DVC started this process as its stage *name*, of whatever dvc.yaml."""
    return os.environ.get(STAGE_VARIABLE, "").rpartition(":")[2] == name


def ancestors_up_to_dvc() -> list[int]:
    """The processes that wait for this one, nearest first, up to the one that DVC runs in.

    Only the parent where DVC's is not among them: it is gone already, or it did not start this one.
    """
    above = _ancestors()
    owners = _dvc_writers()
    known = [place for place, pid in enumerate(above) if pid in owners]
    return above[: known[0] + 1] if known else above[:1]


def find_dvc(pids: Sequence[int]) -> int | None:
    """The one of *pids* that DVC says it runs in; None where it is gone, or did not start this one."""
    return next(iter(_dvc_writers() & set(pids)), None)


def terminate_with(pids: Sequence[int]) -> None:
    """Have this process get a SIGTERM as soon as one of *pids* ends, or at once if one has ended.

    *pids* are its `ancestors_up_to_dvc`. If DVC has exited already, the signal is sent at once too.
    """
    if not pids or (_dvc_writers() and not _dvc_writers() & set(pids)):
        _terminate()
        return
    _request_parent_death_signal()
    _watch(pids, lambda: ancestors_up_to_dvc() == list(pids))


def terminate_with_parent(parent: int) -> None:
    """Have this process get a SIGTERM as soon as *parent*, which started it, ends, or at once if it has."""
    _request_parent_death_signal()
    terminate_once_with_parent(parent)


def terminate_once_with_parent(parent: int) -> None:
    """Do the same with exactly one SIGTERM, for a process whose handler of it must not be called twice."""
    _watch([parent], lambda: os.getppid() == parent)


def is_alive(pid: int) -> bool:
    """Whether a process *pid* runs on this machine, which is not one that only waits to be collected."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path("/proc/self").exists()


def _ancestors() -> list[int]:
    """The parent of this process, and its parent, and so on; the parent alone where there is no /proc."""
    found = [os.getppid()]
    with suppress(OSError):
        while found[-1] > 1:
            fields = Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()
            found.append(int(fields[1]))
    return found


def _dvc_writers() -> set[int]:
    """Every process that DVC says writes outputs of this project now. Empty where DVC does not say it."""
    here = Path.cwd()
    path = next((each / RWLOCK for each in (here, *here.parents) if (each / RWLOCK).exists()), RWLOCK)
    for _ in range(100):
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):  # DVC is writing it
            content = json.loads(path.read_text())
            return {int(each["pid"]) for each in content.get("write", {}).values()}
        if not path.exists():
            break
        time.sleep(0.02)
    return set()


def _watch(pids: Sequence[int], are_there: Callable[[], bool]) -> None:
    try:
        handles = [os.pidfd_open(pid) for pid in pids]
    except ProcessLookupError:
        _terminate()
        return
    except (AttributeError, OSError):  # not Linux, or an old one
        threading.Thread(target=_poll_parent, args=(os.getppid(),), daemon=True).start()
        return
    if not are_there():  # one ended meanwhile, and its number may be another's
        _terminate()
        return
    threading.Thread(target=_wait_for_exit, args=(handles,), daemon=True).start()


def _request_parent_death_signal() -> None:
    """SIGTERM when the parent ends, from the kernel; it is one way of two, and this one is Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGTERM)


def _wait_for_exit(handles: Sequence[int]) -> None:
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    poll.poll()
    _terminate()


def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    _terminate()


def _terminate() -> None:
    os.kill(os.getpid(), SIGTERM)
