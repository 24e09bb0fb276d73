"""One point, from its start to its experiment in the project: what every engine calls.

Three locks, all the kernel's, so that none is ever stale: the sweep's own, which says that somebody waits for
the point; the point's, so that it runs once; and its log's, which all of its processes hold, to the last one.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.engine.frozen_inputs import FrozenProject
from pipeline.engine.project_copy import COPY_SUFFIX, fetch_experiment, temporary_copy
from pipeline.sweep.devices import VISIBLE, claimed, visible
from pipeline.sweep.results import is_result
from stages.contracts.errors import RunInUseError, StageError, StageFailedError
from stages.runs.layout import SWEEP_FOLDER
from stages.runs.lock import held, is_held

SWEEP = ".sweep"
"""How the lock file of a sweep ends."""
PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 120.0
"""How long the processes of a point may take to save once they are to stop."""


@dataclass(frozen=True)
class Job:
    """A point that is to run; plain data, which may go to another host that sees the same files."""

    base: FrozenProject
    name: str
    arguments: tuple[str, ...]
    """What `dvc exp run` is told of it."""
    params: Mapping[str, Any]
    """What the params files say then."""
    sweep: Path
    """The lock file of the sweep: while it is held, the point is wanted."""
    gpu: bool
    """Whether it gets a GPU to itself, where there are any."""
    run: str
    """Which training it is: of points that would share a run store, the same."""

    @property
    def log(self) -> Path:
        """What DVC and the stages print."""
        return self.base.root / SWEEP_FOLDER / f"{self.name}.log"

    @property
    def place(self) -> Path:
        """Where its copy of the project stands."""
        return self.log.with_suffix(COPY_SUFFIX)

    def is_wanted(self) -> bool:
        """Whether the sweep is still there."""
        return is_held(self.sweep)


def run_job(job: Job) -> None:
    """Run the point, and bring its experiment into the project; nothing where another sweep just did.

    Raises `StageFailedError` with what went wrong, also where the sweep ends before the point does.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with _alone(job):
        if _is_done(job):
            return
        with ExitStack() as stack:
            environment, stdin = _surroundings(job, stack)
            folder = stack.enter_context(temporary_copy(job.base, job.place))
            start = job.log.stat().st_size
            code = _attempt(job, folder, environment, stdin)
            if code == 0:
                fetch_experiment(job.base, job.place, job.name)
            elif job.is_wanted():
                log = job.log.relative_to(job.base.root)
                raise StageFailedError(f"{_reason(job.log, start) or f'exit code {code}'}\n  log: {log}")
            else:
                raise StageFailedError("stopped with the sweep, and goes on with it")


def failure_of(job: Job) -> StageError | None:
    """What `run_job` raises, as a value: an engine would print an exception with its traceback."""
    try:
        run_job(job)
    except StageError as error:
        return error
    return None


def _is_done(job: Job) -> bool:
    """Whether another sweep has just run it."""
    commit = job.base.experiments().get(job.name)
    if commit and not is_result(job.base, commit, job.params):
        raise StageFailedError(
            f"another sweep gave the name {job.name} to other params meanwhile: give the same command again"
        )
    return commit is not None


@contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Wait until nobody is at work on the point: another sweep, or what is left of one that was killed."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(held(job.log.with_suffix(".lock")))
                break
            except RunInUseError:
                _pause(job)
        while not is_silent(job.log):
            _pause(job)
        yield


def _pause(job: Job) -> None:
    if not job.is_wanted():
        raise StageFailedError("stopped with the sweep before it began")
    time.sleep(PAUSE_SECONDS)


def _surroundings(job: Job, stack: ExitStack) -> tuple[Mapping[str, str], int]:
    """The environment of the point's processes, and their standard input: the claim of their GPU, if any.

    Nothing reads it; it only keeps the claim as long as any of them lives.
    """
    devices = visible() if job.gpu else []
    if not devices:
        return os.environ, subprocess.DEVNULL
    device, handle = stack.enter_context(claimed(devices, job.is_wanted))
    return {**os.environ, VISIBLE: device}, handle


def _attempt(job: Job, folder: Path, environment: Mapping[str, str], stdin: int) -> int:
    arguments = ["--temp", "--name", job.name, *job.arguments]
    with job.log.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.write(f"$ dvc exp run {' '.join(arguments)}\n".encode())
        log.flush()
        process = subprocess.Popen(  # noqa: S603  no shell
            [sys.executable, "-m", "pipeline.engine.dvc_process", str(os.getpid()), "exp", "run", *arguments],
            cwd=folder,
            env=dict(environment),
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is told to it by us, once
        )
    try:
        while process.poll() is None and job.is_wanted():
            time.sleep(PAUSE_SECONDS)
    finally:
        _end(process, lambda: process.poll() is None or not is_silent(job.log))
    return process.wait()


def _end(process: "subprocess.Popen[bytes]", is_there: Callable[[], bool]) -> None:
    """End what is left of the point's processes, which save first; an ended DVC has left none as a rule."""
    if not is_there():
        return
    deadline = time.monotonic() + PATIENCE_SECONDS
    _signal(process, signal.SIGTERM)
    while is_there():
        if time.monotonic() > deadline:
            _signal(process, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def tidy(folder: Path) -> None:
    """Remove from *folder* the copies in which nobody is at work, and the locks of sweeps that ended."""
    for place in folder.glob(f"*{COPY_SUFFIX}"):
        if is_silent(place.with_suffix(".log")) and not is_held(place.with_suffix(".lock")):
            shutil.rmtree(place, ignore_errors=True)
    for lock in folder.glob(f"*{SWEEP}"):
        if not is_held(lock):
            lock.unlink(missing_ok=True)


def is_silent(log: Path) -> bool:
    """Whether no process is left that could write to *log*: each inherited the lock with the file."""
    try:
        with log.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _reason(log: Path, start: int) -> str:
    """Why it failed, as the log says after *start*: the stage's own error, or the last line."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    for place, line in enumerate(lines):
        if line.startswith("error: "):
            more = [each for each in lines[place + 1 : place + 6] if each.startswith("  ")]
            return "\n".join([line.removeprefix("error: "), *more])
    return lines[-1].strip() if lines else ""
