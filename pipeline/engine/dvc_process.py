"""DVC's command line in a child process, which stops when this process is stopped, and exits with it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dvc.cli import main as dvc

from pipeline.engine import dvc_patches
from pipeline.engine.process_tree import terminate_with_parent
from pipeline.project.git import without_repository
from stages.contracts.errors import StageFailedError
from stages.contracts.printing import clean_log_records
from stages.system.processes import module_command

SAVE_SECONDS = 25.0
"""Time limit for a child to save after SIGINT. Prefect kills a cancelled run after 30 seconds."""
MAX_SHOWN_LINES = 20
PREFECT_PREFIX = "PREFECT__"
"""Prefix of the environment variables with which Prefect describes the run of a process."""


def run_dvc(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    log_line: Callable[[str], None],
    deadline: float | None = None,
    folder: Path | None = None,
) -> None:
    """Run ``dvc`` with *arguments* in *folder*, by default the current one, and pass each line to *log_line*.

    If a signal or *deadline*, on the monotonic clock, ends the wait, DVC gets a SIGINT, so that a stage saves
    and DVC removes its temporary files. Raises `StageFailedError` with the last lines if DVC fails, and
    `TimeoutError`.
    """
    child = subprocess.Popen(  # noqa: S603  the arguments are no shell's
        module_command("pipeline.engine.dvc_process", str(os.getpid()), *arguments),
        cwd=folder,
        env=_environment(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=MAX_SHOWN_LINES)
    reader = threading.Thread(target=_show, args=(child, last, log_line), daemon=True)
    reader.start()
    try:
        code = child.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"dvc {' '.join(arguments[:2])} was interrupted") from None
    finally:
        _stop(child)
        reader.join(5)
    if code:
        lines = "".join(f"\n  {line}" for line in last)
        raise StageFailedError(f"dvc {' '.join(arguments)} failed with exit code {code}:{lines}")


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return *more* and the environment of this process, without its Prefect run and with its ``python``."""
    inherited = without_repository(os.environ)
    variables = {name: value for name, value in inherited.items() if not name.startswith(PREFECT_PREFIX)}
    path = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])
    return variables | {"PATH": path, **more}


def _show(child: "subprocess.Popen[str]", last: deque[str], log_line: Callable[[str], None]) -> None:
    """Pass each line of *child* to *log_line*, and keep the last ones in *last*."""
    for line in child.stdout or ():
        last.append(line.rstrip())
        with suppress(OSError):  # if the output of this process is closed, the child must not block
            log_line(line.rstrip())


def _stop(child: "subprocess.Popen[str]") -> None:
    """Stop *child* with SIGINT, and with SIGTERM and SIGKILL if it does not exit in time."""
    for number, seconds in ((signal.SIGINT, SAVE_SECONDS), (signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        if child.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


def main(arguments: Sequence[str]) -> int:
    """Run ``dvc`` with all *arguments* but the first, the pid of the parent, and exit when that exits."""
    terminate_with_parent(int(arguments[0]))
    dvc_patches.apply()
    with clean_log_records():
        return int(dvc(list(arguments[1:])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
