"""GPUs of a sweep: the visible ones, and the claim of one GPU for each job.

A claim is a lock on a file for each device of the host. The kernel releases it when the job ends, and two
sweeps, of the same or of different users, never share a device.
"""

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
from stages.contracts.file_lock import try_lock

VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
PAUSE_SECONDS = 0.2
_DEVICE_LINE = re.compile(r"^( *)(?:GPU|MIG) .*UUID: ((?:GPU|MIG)-[^)]+)\)", re.MULTILINE)


def visible_devices(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the CUDA devices that a process with *environment* may use, by index or UUID.

    They are those in ``CUDA_VISIBLE_DEVICES`` up to the first invalid one, as CUDA reads it. If it is not
    set, they are those that nvidia-smi lists; empty if nvidia-smi is not installed.
    """
    if VISIBLE_DEVICES_VARIABLE not in environment:
        return parse_devices(_nvidia_smi())
    found: list[str] = []
    for name in environment[VISIBLE_DEVICES_VARIABLE].split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name.strip()):
            break
        found.append(name.strip())
    return list(dict.fromkeys(found))


def parse_devices(text: str) -> list[str]:
    """Return the UUIDs in the output of ``nvidia-smi -L``; for a GPU with MIG, those of its MIG devices."""
    rows = _DEVICE_LINE.findall(text)
    return [
        uuid
        for (indent, uuid), (following, _) in zip(rows, [*rows[1:], ("", "")], strict=False)
        if indent or not following
    ]


@contextmanager
def claim_device(devices: Sequence[str], is_wanted: Callable[[], bool]) -> Iterator[tuple[str, int]]:
    """Wait until no other job uses one of *devices*, and yield it with the file descriptor of its lock.

    A process that inherits the descriptor keeps the claim. Raises `StageError` if *is_wanted* returns False
    before a device is free.
    """
    folder = Path(tempfile.gettempdir()) / "learner-gpus"
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    names = _lock_names(devices)
    while is_wanted():
        for device in devices:
            handle = _open(folder / f"{names[device]}.lock")
            try:
                if try_lock(handle):
                    yield device, handle
                    return
            finally:
                os.close(handle)
        time.sleep(PAUSE_SECONDS)
    raise StageError("stopped while it waited for a free GPU. Run the same command again to resume")


def _lock_names(devices: Sequence[str]) -> dict[str, str]:
    """Return the name of each device's lock: its UUID, so that an index and a UUID share the lock."""
    uuids = parse_devices(_nvidia_smi()) if any(each.isdigit() for each in devices) else []
    return {
        each: uuids[int(each)] if each.isdigit() and int(each) < len(uuids) else each.replace("/", "-")
        for each in devices
    }


def _nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    done = subprocess.run(  # noqa: S603  no shell, fixed arguments
        [program, "-L"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout if done.returncode == 0 else ""


def _open(path: Path) -> int:
    """Open the lock file *path*, with O_CREAT only if it is missing.

    In a shared folder many systems forbid O_CREAT for an existing file of another user.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with suppress(OSError):
            os.fchmod(handle, 0o644)
        return handle
