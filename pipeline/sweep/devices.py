"""GPUs of a sweep: the visible ones, and the claim of the GPUs of each job.

A claim is a lock on a file for each device of the host. The kernel releases it when the job ends, and two
sweeps of one user never share a device; those of different users have to name theirs in
``CUDA_VISIBLE_DEVICES``. A job claims all of its devices or none, so that no job waits for a device of
another one that waits too.
"""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.project.paths import make_user_folder
from stages.contracts.errors import StageError
from stages.system.file_lock import try_lock

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
    devices: list[str] = []
    for name in environment[VISIBLE_DEVICES_VARIABLE].split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name.strip()):
            break
        devices.append(name.strip())
    return list(dict.fromkeys(devices))


def parse_devices(text: str) -> list[str]:
    """Return the UUIDs in the output of ``nvidia-smi -L``; for a GPU with MIG, those of its MIG devices."""
    rows = _DEVICE_LINE.findall(text)
    return [
        uuid
        for (indent, uuid), (following, _) in zip(rows, [*rows[1:], ("", "")], strict=False)
        if indent or not following
    ]


def count_needed(names: Collection[str], visible: int) -> int:
    """Return the number of GPUs, of *visible* ones, with which the *names* in ``fit.device`` exist.

    The GPUs that a job claims are ``cuda:0``, ``cuda:1``, and so on in its processes. ``all`` is all visible.
    """
    if "all" in names:
        return visible
    indices = [name.partition(":")[2] for name in names]
    return max((int(index) + 1 if index.isdigit() else 1 for index in indices), default=0)


@contextmanager
def claim_devices(
    devices: Sequence[str], count: int, is_wanted: Callable[[], bool]
) -> Iterator[tuple[list[str], int]]:
    """Wait until *count* of *devices* are free, and yield them with a file descriptor that holds the claim.

    A process that inherits the descriptor keeps the claim. Raises `StageError` if there are fewer *devices*,
    or if *is_wanted* returns False before enough are free.
    """
    if count > len(devices):
        raise StageError(
            f"fit.device needs {count} GPUs, and {len(devices)} are visible. Name fewer devices, or run the "
            "sweep on a machine with more"
        )
    try:
        folder = make_user_folder(f"gpus-{socket.gethostname()}")  # hosts may share the home folder
    except OSError as error:
        raise StageError(
            f"no folder for the locks of GPUs: {error}. Set XDG_CACHE_HOME to another"
        ) from error
    locks = {device: folder / f"{name}.lock" for device, name in _lock_names(devices).items()}
    while is_wanted():
        with _try_claim(locks, count) as claimed:
            if claimed:
                with _bundle(claimed.values()) as handle:
                    yield [device for device in devices if device in claimed], handle
                return
        time.sleep(PAUSE_SECONDS)
    raise StageError("stopped while it waited for a free GPU. Run the same command again to resume")


@contextmanager
def _try_claim(locks: Mapping[str, Path], count: int) -> Iterator[dict[str, int]]:
    """Lock *count* of *locks*, and yield the descriptors by device; lock none if fewer are free.

    All jobs try the locks in the same order, and stop when too few are left, so one of several succeeds.
    """
    claimed: dict[str, int] = {}
    with ExitStack() as stack:
        for place, device in enumerate(sorted(locks, key=lambda name: locks[name])):
            if len(claimed) == count or len(claimed) + len(locks) - place < count:
                break
            handle = os.open(locks[device], os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, handle)
            if try_lock(handle):
                claimed[device] = handle
        yield claimed if len(claimed) == count else {}


@contextmanager
def _bundle(handles: Iterable[int]) -> Iterator[int]:
    """Yield one descriptor that keeps all of *handles* open in every process that inherits it.

    It is a socket that has received them in a message without content, which no process reads. The kernel
    closes them with the last descriptor of the socket. A read of the socket returns the end of the file.
    """
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with receiver:
        with sender:
            socket.send_fds(sender, [b""], list(handles))
        yield receiver.fileno()


def _lock_names(devices: Sequence[str]) -> dict[str, str]:
    """Return the name of each device's lock: its UUID, so that an index and a UUID share the lock."""
    uuids = parse_devices(_nvidia_smi()) if any(device.isdigit() for device in devices) else []
    return {
        device: uuids[int(device)]
        if device.isdigit() and int(device) < len(uuids)
        else device.replace("/", "-")
        for device in devices
    }


def _nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    done = subprocess.run(  # noqa: S603  no shell, fixed arguments
        [program, "-L"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout if done.returncode == 0 else ""
