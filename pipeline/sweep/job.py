"""A job of a sweep: one point, from its start to its experiment in the project.

It uses three locks of the kernel, which are never stale. The lock of the sweep is held while the sweep needs
the point. The lock of the point makes it run once. All processes of the point hold the lock of its log until
the last one has exited.

The GPUs of a job are claimed too: each device of the host has a byte of a file, which is locked. One
descriptor holds all locks of a job, and the kernel releases them when the last process with it ends. Two
sweeps of one user never share a device; those of different users have to name theirs in
``CUDA_VISIBLE_DEVICES``. A job claims all of its devices or none, so that no job waits for a device of
another one that waits too.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dvc.env import DVC_EXP_BASELINE_REV, DVC_EXP_NAME

from pipeline.engine.error_reports import find_error, read_lines
from pipeline.engine.project_copy import (
    COPY_SUFFIX,
    FrozenProject,
    fetch_experiment,
    isolate_site_cache,
    remove_orphaned,
    temporary_copy,
)
from pipeline.project.paths import STORES_VARIABLE, make_user_folder
from pipeline.sweep.plan import PlannedPoint, is_result, list_gpus
from pipeline.sweep.point_process import (
    FIRST_POINT_SUFFIX,
    IN_USE_CODE,
    POINT_SERVERS,
    PointProcess,
    PointRequest,
)
from stages.contracts.errors import RunInUseError, StageError, StageFailedError
from stages.runs.layout import RUNGS_SUFFIX, SWEEP_FOLDER
from stages.system.file_lock import hold_lock, is_locked, open_lock, try_lock, wait_for_lock

SWEEP_LOCK_SUFFIX = ".sweep"
"""Suffix of the lock file of a sweep."""
SAVE_TIMEOUT_SECONDS = 120.0
"""Limit for the processes of a point to save after SIGTERM, before they are killed."""
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
PAUSE_SECONDS = 0.2
LOCK_FILE = "lock"
"""Name of the file with the locks of the GPUs, each of which is a byte."""
_FLOCK = "hhqqi"
"""The structure of a lock of the kernel: type, base, place, length and process."""
_DEVICE_LINE = re.compile(r"^( *)(?:GPU|MIG) .*UUID: ((?:GPU|MIG)-[^)]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """A point to run, as plain data: another host that has the same files can run it too."""

    base: FrozenProject
    point: PlannedPoint
    sweep_lock: Path
    """The lock file of the sweep, which is held while the sweep needs the point."""
    share_gpus: bool = False
    """Whether it uses all visible GPUs, instead of claiming those that its params name."""

    @property
    def log(self) -> Path:
        """The file with the output of DVC and the stages."""
        return self.base.root / SWEEP_FOLDER / f"{self.point.name}.log"

    @property
    def copy_folder(self) -> Path:
        """The folder of its copy of the project."""
        return self.log.with_suffix(COPY_SUFFIX)

    def is_wanted(self) -> bool:
        """Return whether the sweep still runs."""
        return is_locked(self.sweep_lock)


def run_job(job: Job) -> None:
    """Run the point and copy its experiment into the project, unless another sweep has just done that.

    Raises `StageFailedError` if the point fails, or if the sweep ends before the point does, and
    `RunInUseError` if another process uses its run store.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with _lock_point(job):
        if _is_done(job):
            return
        with ExitStack() as stack:
            environment, stdin = _claim_gpus(job, stack)
            folder = stack.enter_context(temporary_copy(job.base, job.copy_folder))
            start = job.log.stat().st_size
            code = _run_point(job, folder, environment, stdin)
            if code == 0:
                _fetch(job)
            elif job.is_wanted():
                kind = RunInUseError if code == IN_USE_CODE else StageFailedError
                log = job.log.relative_to(job.base.root)
                raise kind(f"{_reason(code, job.log, start)}\n  log: {log}")
            else:
                raise StageFailedError("stopped with the sweep. Run the same command again to resume")


def _fetch(job: Job) -> None:
    """Copy the experiment of the point into the project, unless a sweep of another project there has just."""
    try:
        fetch_experiment(job.base, job.copy_folder, job.point.name, job.point.replaces)
    except StageError:
        if not _is_done(job):
            raise


def run_and_return_error(job: Job) -> StageError | None:
    """Run the point and return the error: an executor would print a raised one with its traceback."""
    try:
        run_job(job)
    except StageError as error:
        return error
    return None


def _is_done(job: Job) -> bool:
    """Return whether another sweep has just run the point."""
    point = job.point
    commit = job.base.experiments().get(point.name, "")
    if commit == point.replaces:
        return False
    if not is_result(job.base, commit, point.params):
        raise StageFailedError(
            f"another sweep has used the name {point.name} for other params. Run the same command again"
        )
    return True


@contextmanager
def _lock_point(job: Job) -> Iterator[None]:
    """Wait until no other sweep, and no process of a killed one, works on the point, and lock it."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_lock(job.log.with_suffix(".lock")))
                break
            except RunInUseError:
                _pause(job)
        while not is_unlocked(job.log):
            _pause(job)
        yield


def _pause(job: Job) -> None:
    if not job.is_wanted():
        raise StageFailedError("stopped with the sweep before it started. Run the same command again")
    time.sleep(PAUSE_SECONDS)


def _claim_gpus(job: Job, stack: ExitStack) -> tuple[Mapping[str, str], int]:
    """Return variables to set in the environment of the point's processes, and their standard input.

    The standard input holds the locks of their GPUs, if they have any. No process reads it; it only keeps the
    locks until the last process has exited.
    """
    names = () if job.share_gpus else list_gpus(job.base, job.point.params)
    devices = visible_devices() if names else []
    if not devices:
        return {}, stack.enter_context(Path(os.devnull).open("rb")).fileno()
    count = count_needed(names, len(devices))
    claimed, handle = stack.enter_context(claim_devices(devices, count, job.is_wanted))
    return {VISIBLE_DEVICES_VARIABLE: ",".join(claimed)}, handle


def _run_point(job: Job, folder: Path, environment: Mapping[str, str], stdin: int) -> int:
    """Run the point in *folder* and return the exit code; stop it if the sweep ends, after it has saved."""
    with os.fdopen(open_lock(job.log), "ab") as log:
        wait_for_lock(log)
        request = build_request(job, folder, environment)
        options = [part for override in request.overrides for part in ("-S", override)]
        log.write(f"$ dvc exp run --temp --name {job.point.name} {' '.join(options)}\n".encode())
        log.flush()
        process = POINT_SERVERS.start(job.base, request, log, stdin)
    with closing(process):
        try:
            while process.wait(PAUSE_SECONDS) is None and job.is_wanted():
                pass
        finally:
            _terminate(process, job.log)
        code = process.wait(PAUSE_SECONDS)
        return 1 if code is None else code


def build_request(job: Job, folder: Path, environment: Mapping[str, str]) -> PointRequest:
    """Return the request to run the point in *folder*, with *environment* and what DVC sets for it."""
    name, base = job.point.name, job.base
    variables = {
        **environment,
        **isolate_site_cache(folder),
        STORES_VARIABLE: str(base.root),
        DVC_EXP_NAME: name,
        DVC_EXP_BASELINE_REV: base.head,
    }
    overrides = job.point.point.set_params
    return PointRequest(overrides, str(folder), base.ref(name), str(job.sweep_lock), variables)


def _terminate(process: PointProcess, log: Path) -> None:
    """Terminate the processes of the point that still run; they save first. Usually none runs by then."""
    if is_unlocked(log):
        return
    deadline = time.monotonic() + SAVE_TIMEOUT_SECONDS
    process.signal(signal.SIGTERM)
    while not is_unlocked(log):
        if time.monotonic() > deadline:
            process.signal(signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)


def remove_leftovers(folder: Path) -> None:
    """Remove from *folder* the copies in which no process works, and the locks of finished sweeps."""
    remove_orphaned(folder, lambda place: not is_unlocked(place.with_suffix(".log")))
    for lock in [*folder.glob(f"*{SWEEP_LOCK_SUFFIX}"), *folder.glob(f"*{RUNGS_SUFFIX}")]:
        if not is_locked(lock):
            lock.unlink(missing_ok=True)
            lock.with_suffix(FIRST_POINT_SUFFIX).unlink(missing_ok=True)


def is_unlocked(log: Path) -> bool:
    """Return whether no process has *log* open for writing: each inherits the lock with the file."""
    with os.fdopen(open_lock(log), "ab") as file:
        return try_lock(file)


def _reason(code: int, log: Path, start: int) -> str:
    """Return why a point ended with *code*: a signal, or in *log* after *start* an error or the last line."""
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    lines = read_lines(log, start)
    return find_error(lines) or (lines[-1].strip() if lines else "") or f"exit code {code}"


def visible_devices() -> list[str]:
    """Return the CUDA devices that this process may use, by index or UUID.

    They are those in ``CUDA_VISIBLE_DEVICES`` up to the first invalid one, as CUDA reads it. If it is not
    set, they are those that nvidia-smi lists; empty if nvidia-smi is not installed.
    """
    if VISIBLE_DEVICES_VARIABLE not in os.environ:
        return parse_devices(_nvidia_smi())
    devices: list[str] = []
    for name in os.environ[VISIBLE_DEVICES_VARIABLE].split(","):
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
    names = _name_devices(devices)
    while is_wanted():
        with os.fdopen(open_lock(folder / LOCK_FILE), "ab") as file:
            claimed = _try_claim(file, names, count)
            if claimed:
                yield [device for device in devices if device in claimed], file.fileno()
                return
        time.sleep(PAUSE_SECONDS)
    raise StageError("stopped while it waited for a free GPU. Run the same command again to resume")


def _try_claim(file: IO[bytes], names: Mapping[str, str], count: int) -> list[str]:
    """Lock the bytes of *file* for *count* devices of *names*, and return these; empty if fewer are free.

    All jobs try the names in the same order, and stop when too few are left, so one of several succeeds.
    """
    claimed: list[str] = []
    for tried, device in enumerate(sorted(names, key=lambda device: names[device])):
        if len(claimed) == count or len(claimed) + len(names) - tried < count:
            break
        with suppress(BlockingIOError):
            place = zlib.crc32(names[device].encode())
            lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
            claimed.append(device)
    return claimed if len(claimed) == count else []


def _name_devices(devices: Sequence[str]) -> dict[str, str]:
    """Return the UUID of each device, by which it is locked, so that an index and a UUID share the lock."""
    uuids = parse_devices(_nvidia_smi()) if any(device.isdigit() for device in devices) else []
    names = dict(zip(map(str, range(len(uuids))), uuids, strict=True))
    return {device: names.get(device, device) for device in devices}


def _nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    done = subprocess.run(  # noqa: S603  no shell, fixed arguments
        [program, "-L"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout if done.returncode == 0 else ""
