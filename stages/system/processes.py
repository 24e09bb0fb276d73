"""Processes of this machine: identity, liveness, parents and working directories, as psutil reports them.

Worker processes and threads, which help the main thread, block or ignore the signals that it handles.
"""

import atexit
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_bool
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, Signals

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ROOT = Path(__file__).parents[2]
_IMPORT_OWN = "import sys; sys.path.insert(0, sys.argv.pop(1)); import pipeline, stages; del sys.path[0]; "
"""Beginning of a program that imports the packages of this project from the folder in its first argument."""
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True)
class ProcessIdentity:
    """A process on some host, distinct from every later process with the same number."""

    pid: int
    host: str
    boot: str
    """The id of the machine's boot; empty if the system has none."""
    started: str
    """The start time in clock ticks since the boot; empty if it is unknown."""

    @classmethod
    def of_this_process(cls) -> "ProcessIdentity":
        """Return the identity of the calling process."""
        return cls.of(os.getpid())

    @classmethod
    @functools.lru_cache(maxsize=4)
    def of(cls, pid: int) -> "ProcessIdentity":
        """Return the identity of process *pid* of this host."""
        return cls(pid, socket.gethostname(), _boot_id(), _start_ticks(pid))

    def has_ended(self) -> bool:
        """Return whether the process is certain to have ended; false for a process of another host."""
        if self.host != socket.gethostname():
            return False
        if self.boot != _boot_id():
            return True
        return not psutil.pid_exists(self.pid) or self.started != _start_ticks(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid}, host {self.host}"


def to_json(process: ProcessIdentity) -> str:
    """Return *process* as one line of JSON."""
    return json.dumps(asdict(process))


def from_json(text: str | bytes) -> ProcessIdentity | None:
    """Return the process that `to_json` wrote; None for any other text."""
    try:
        return ProcessIdentity(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None


def program_command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs the Python *program* with *arguments* in another process.

    Unlike with ``python -c``, no module of the current folder is imported, except for those that the program
    imports as a project's own; `stages` and `pipeline` are those of this process.
    """
    return [sys.executable, "-P", "-c", f"{_IMPORT_OWN}{program}", str(_ROOT), *arguments]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs *module* in another process, as `program_command` runs a program."""
    return program_command(_RUN_MODULE, module, *arguments)


def is_alive(pid: int) -> bool:
    """Return whether process *pid* runs on this machine; a zombie does not."""
    try:
        return psutil.Process(pid).status() not in _ENDED
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, ValueError):
        return False


def ancestors() -> list[int]:
    """Return the parent of this process, its parent, and so on up to the first process."""
    pids = [os.getppid()]
    while pids[-1] > 1 and (parent := parent_of(pids[-1])) is not None:
        pids.append(parent)
    return pids


def parent_of(pid: int) -> int | None:
    """Return the parent of process *pid*; None if it has ended."""
    with suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return None


def command_of(pid: int) -> list[str]:
    """Return the command line of process *pid*; an empty list if it cannot be read."""
    with suppress(psutil.Error):
        return list(psutil.Process(pid).cmdline())
    return []


def working_directory(pid: int) -> Path | None:
    """Return the working directory of process *pid* of this host; None if it cannot be read."""
    with suppress(psutil.Error, OSError):
        return Path(psutil.Process(pid).cwd())
    return None


def read_start_time(pid: int) -> float | None:
    """Return the time, in seconds since the epoch, at which process *pid* started; None if it has ended.

    The value depends on the system clock: setting the clock changes it.
    """
    with suppress(psutil.Error):
        return float(psutil.Process(pid).create_time())
    return None


def pids_below(*folders: Path) -> Iterator[int]:
    """Yield the processes whose working directory is one of *folders* or below, as far as it can be read."""
    real = {folder.resolve() for folder in folders}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            current = Path(process.cwd())
            if not real.isdisjoint((current, *current.parents)):
                yield process.pid


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def _start_ticks(pid: int) -> str:
    """Return the start time in clock ticks since the boot, field 22 of ``/proc/<pid>/stat`` on Linux.

    psutil adds the time of the boot to it, which changes if the system clock is set; it is subtracted again.
    """
    for _ in range(3):
        with suppress(psutil.Error, OSError):
            boot = psutil.boot_time()
            created = psutil.Process(pid).create_time()
            if boot == psutil.boot_time():  # otherwise the clock was set between the two
                return str(round((created - boot) * os.sysconf("SC_CLK_TCK")))
        time.sleep(0.001)
    return ""


RESET = (SIGTERM, SIGHUP)
"""Signals whose handlers a worker must not inherit from its parent, since they print or save."""
PARENT_POLL_SECONDS = 1.0


def end_process(code: int) -> None:
    """Exit with *code* as the interpreter does, but without the destruction of all objects.

    That takes 0.7 seconds of processor time after an import of torch. The function returns, so that the
    caller exits as usual, if standard output is closed, or if a debugger, a profiler or a preloaded library,
    which may write at the exit, observes the process.
    """
    has_tool = sys.version_info >= (3, 12) and any(map(sys.monitoring.get_tool, range(6)))
    if has_tool or sys.gettrace() or sys.getprofile() or "LD_PRELOAD" in os.environ:
        return
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  waits for the threads
    atexit._run_exitfuncs()  # noqa: SLF001
    with suppress(AttributeError, OSError, ValueError):  # no stream, a closed pipe, a closed stream
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def block_signals(*numbers: Signals) -> Iterator[None]:
    """Block the signals *numbers* in this thread; processes that start in the block inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_worker(may_exit: c_bool, _: int = 0) -> None:
    """Let a worker that started while `RESET` and SIGINT were blocked run as long as its parent needs it.

    It exits when its parent has exited, and on a signal of `RESET` once the parent has set *may_exit*, in
    shared memory, because it ends its workers. Until then it ignores them: a signal to the whole group must
    not end the workers while the parent still needs batches up to the point at which it stops.

    A handler ignores the signals, because a process that a worker starts would inherit SIG_IGN. torch has
    set a handler of SIGTERM before, which reports the worker as killed.
    """

    def handle(*_: object) -> None:
        if may_exit.value:
            os._exit(0)

    for number in RESET:
        signal.signal(number, handle)
    signal.signal(SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGINT, *RESET))


def _exit_with(parent: int) -> None:
    """Exit soon after *parent*, also while a sample is loaded."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)
