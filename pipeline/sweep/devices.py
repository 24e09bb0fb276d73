"""One GPU a job: which there are, and a claim that the kernel holds and that dies with the job.

A claim is a locked file for each device of the host, so that two sweeps, of whatever user, share none.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.contracts.errors import StageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
PAUSE_SECONDS = 0.2
_LISTED = re.compile(r"^( *)(?:GPU|MIG) .*UUID: ((?:GPU|MIG)-[^)]+)\)", re.MULTILINE)


def visible(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The CUDA devices that a process with *environment* may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    What that variable says, read as CUDA reads it: up to the first that is none. Where it is not set, what
    nvidia-smi lists; nothing where that is not there.
    """
    if VISIBLE not in environment:
        return listed(_nvidia_smi())
    found: list[str] = []
    for name in environment[VISIBLE].split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name.strip()):
            break
        found.append(name.strip())
    return list(dict.fromkeys(found))


def listed(text: str) -> list[str]:
    """The devices in what ``nvidia-smi -L`` prints; of a GPU that is divided, its parts."""
    rows = _LISTED.findall(text)
    return [
        uuid
        for (indent, uuid), (following, _) in zip(rows, [*rows[1:], ("", "")], strict=False)
        if indent or not following
    ]


@contextmanager
def claimed(devices: Sequence[str], wanted: Callable[[], bool]) -> Iterator[tuple[str, int]]:
    """One of *devices* that no other job has, and the handle that holds the claim, whoever inherits it.

    Waits until one is free. Raises `StageError` where it is not *wanted* any more before that.
    """
    folder = Path(tempfile.gettempdir()) / "learner-gpus"
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    names = _lasting(devices)
    while wanted():
        for device in devices:
            handle = _open(folder / f"{names[device]}.lock")
            try:
                if _locked(handle):
                    yield device, handle
                    return
            finally:
                os.close(handle)
        time.sleep(PAUSE_SECONDS)
    raise StageError("stopped while it waited for a GPU")


def _lasting(devices: Sequence[str]) -> dict[str, str]:
    """What a claim of each device is called: its UUID, so that an index and a UUID of one device meet."""
    known = listed(_nvidia_smi()) if any(each.isdigit() for each in devices) else []
    return {
        each: known[int(each)] if each.isdigit() and int(each) < len(known) else each.replace("/", "-")
        for each in devices
    }


def _nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    done = subprocess.run(  # noqa: S603  no shell, nothing of the user's
        [program, "-L"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout if done.returncode == 0 else ""


def _open(path: Path) -> int:
    """Another user's file is opened as it is: many systems forbid to create over it in a shared folder."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with suppress(OSError):
            os.fchmod(handle, 0o644)
        return handle


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
