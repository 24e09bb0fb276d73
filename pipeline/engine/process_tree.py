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

from pipeline.engine.lockfile_repair import NOTE

STAGE = "DVC_STAGE"
PR_SET_PDEATHSIG = 1


def started_by_dvc(name: str) -> bool:
    """Whether DVC started this process as its stage *name*, of whatever dvc.yaml."""
    return os.environ.get(STAGE, "").rpartition(":")[2] == name


def starters() -> list[int]:
    """The processes that wait for this one, nearest first, up to the one that DVC runs in.

    Only the parent where DVC's is not among them: it is gone already, or it did not start this one.
    """
    above = _ancestors()
    owners = _owners()
    known = [place for place, pid in enumerate(above) if pid in owners]
    return above[: known[0] + 1] if known else above[:1]


def dvc_among(pids: Sequence[int]) -> int | None:
    """The one of *pids* that DVC says it runs in; None where it is gone, or did not start this one."""
    return next(iter(_owners() & set(pids)), None)


def leave_with(pids: Sequence[int]) -> None:
    """Have this process get a SIGTERM as soon as one of *pids* ends, or at once if one has ended.

    *pids* are its `starters`. Where DVC has already gone when this is called, it is at once as well.
    """
    if not pids or (_owners() and not _owners() & set(pids)):
        _leave()
        return
    _ask_the_kernel()
    _watch(pids, lambda: starters() == list(pids))


def leave_with_parent(parent: int) -> None:
    """Have this process get a SIGTERM as soon as *parent*, which started it, ends, or at once if it has."""
    _ask_the_kernel()
    terminate_with_parent(parent)


def terminate_with_parent(parent: int) -> None:
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


def _owners() -> set[int]:
    """Every process that DVC says writes outputs of this project now. Empty where DVC does not say it."""
    here = Path.cwd()
    path = next((each / NOTE for each in (here, *here.parents) if (each / NOTE).exists()), NOTE)
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
        _leave()
        return
    except (AttributeError, OSError):  # not Linux, or an old one
        threading.Thread(target=_poll, args=(os.getppid(),), daemon=True).start()
        return
    if not are_there():  # one ended meanwhile, and its number may be another's
        _leave()
        return
    threading.Thread(target=_wait, args=(handles,), daemon=True).start()


def _ask_the_kernel() -> None:
    """SIGTERM when the parent ends, from the kernel; it is one way of two, and this one is Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGTERM)


def _wait(handles: Sequence[int]) -> None:
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    poll.poll()
    _leave()


def _poll(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    _leave()


def _leave() -> None:
    os.kill(os.getpid(), SIGTERM)
