"""DVC's command line in a process of its own, which stops when this one is stopped, and goes when it goes."""

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
from stages.contracts.errors import StageFailedError

SAVE_SECONDS = 25.0
"""What a child that is told to stop has, to save. Prefect itself kills a cancelled run after 30 seconds."""
MAX_SHOWN_LINES = 20
PREFECT_PREFIX = "PREFECT__"
"""How the variables begin by which Prefect tells a process which run it is."""


def run_dvc(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    say: Callable[[str], None],
    deadline: float | None = None,
    folder: Path | None = None,
) -> None:
    """Run ``dvc`` with *arguments* in *folder*, by default the current one, and pass on each line.

    If a signal or *deadline*, on the monotonic clock, ends the wait, DVC gets a SIGINT, so that a stage saves
    and DVC removes its temporary files. Raises `StageFailedError` with the last lines if DVC fails, and
    `TimeoutError`.
    """
    command = [sys.executable, "-m", "pipeline.engine.dvc_process", str(os.getpid()), *arguments]
    child = subprocess.Popen(  # noqa: S603  the arguments are no shell's
        command,
        cwd=folder,
        env=_environment(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=MAX_SHOWN_LINES)
    reader = threading.Thread(target=_show, args=(child, last, say), daemon=True)
    reader.start()
    try:
        code = child.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"dvc {' '.join(arguments[:2])} was interrupted") from None
    finally:
        _stop(child)
        reader.join(5)
    if code:
        told = "".join(f"\n  {line}" for line in last)
        raise StageFailedError(f"dvc {' '.join(arguments)} ended with exit code {code}:{told}")


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """That of this process, without what is about its own run, and with its ``python`` first."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(PREFECT_PREFIX)}
    path = os.pathsep.join([str(Path(sys.executable).parent), mine.get("PATH", os.defpath)])
    return mine | {"PATH": path, **more}


def _show(child: "subprocess.Popen[str]", last: deque[str], say: Callable[[str], None]) -> None:
    for line in child.stdout or ():
        last.append(line.rstrip())
        with suppress(OSError):  # a closed pipe must not stop the reading, which the child would wait for
            say(line.rstrip())


def _stop(child: "subprocess.Popen[str]") -> None:
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
    return int(dvc(list(arguments[1:])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
