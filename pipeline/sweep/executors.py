"""Executors of a sweep: threads of this process, or the workers of Dask or Ray, on this host or on a cluster.

Every executor runs the same function, `run_and_return_error`. A worker that runs it has one server of points,
which forks a process for each point (see `point_process.py`). `run_jobs` limits the points in progress.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from pipeline.engine.signals import defer_signals
from pipeline.sweep.job import PAUSE_SECONDS, Job, is_unlocked, run_and_return_error
from stages.contracts.errors import ParamsError, RunInUseError, StageError
from stages.system.file_lock import hold_lock

TIMEOUT_SECONDS = 20
"""Limit for the connection to a Dask scheduler."""
DASK_ADDRESS = "DASK_SCHEDULER_ADDRESS"
RAY_ADDRESS = "RAY_ADDRESS"
"""Environment variables with the default of ``--address``."""
_RAY_OPTIONS = {"runtime_env": {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}}
"""Ray hides the GPUs from tasks that request none, but here each point claims its own GPU."""
Submit = Callable[[Job], Any]
"""A function that submits a job, and returns its future; the result is the error of the job, if any."""
Report = Callable[[Job, Exception | None], None]


@dataclass(frozen=True)
class ThreadExecutor:
    """Threads of this process."""

    width: int
    name: str = "threads"

    @contextmanager
    def start(self) -> Iterator[Submit]:
        """Start the threads."""
        with ThreadPoolExecutor(self.width) as pool:
            yield lambda job: pool.submit(run_and_return_error, job)

    def task_runner(self) -> Any:
        """Return Prefect's task runner for threads."""
        return import_module("prefect.task_runners").ThreadPoolTaskRunner(max_workers=self.width)


def dask_setup(_worker: object) -> None:
    """Ignore Ctrl-C in a worker process, and what Dask logs when the sweep then cancels its points.

    The terminal sends the signal to the workers too, and each would print a traceback. Dask calls this
    function by its name when it starts a worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("distributed.worker.state_machine").setLevel(logging.ERROR)


@dataclass(frozen=True)
class DaskExecutor:
    """Worker processes of Dask on this host, or a cluster by the address of its scheduler."""

    width: int
    address: str | None
    distributed: Any
    prefect_dask: Any
    name: str = "dask"

    @contextmanager
    def start(self) -> Iterator[Submit]:
        """Start the workers, or connect to the cluster. Raises `StageError` if that is unreachable."""
        with ExitStack() as stack:
            client = stack.enter_context(self._connect(stack))
            yield lambda job: client.submit(run_and_return_error, job, pure=False, retries=0)

    def _connect(self, stack: ExitStack) -> Any:
        if not self.address:
            cluster = self.distributed.LocalCluster(**self._local())
            return self.distributed.Client(stack.enter_context(cluster))
        try:
            return self.distributed.Client(self.address, timeout=TIMEOUT_SECONDS)
        except OSError as error:
            raise StageError(
                f"no Dask scheduler answers at {self.address}: {error}. Start one, or set another --address"
            ) from error

    def task_runner(self) -> Any:
        """Return Prefect's task runner for Dask."""
        if self.address:
            options = {"timeout": TIMEOUT_SECONDS}
            return self.prefect_dask.DaskTaskRunner(address=self.address, client_kwargs=options)
        return self.prefect_dask.DaskTaskRunner(cluster_kwargs=self._local())

    def _local(self) -> dict[str, Any]:
        """Return the options for a worker process for each point at a time.

        A scheduler runs any code that a client sends, so it accepts only those with its certificate.
        """
        return {
            "security": self.distributed.Security.temporary(),
            "n_workers": self.width,
            "threads_per_worker": 1,
            "processes": True,
            "dashboard_address": None,
            "preload": [__name__],
        }


@dataclass(frozen=True)
class RayExecutor:
    """Worker processes of Ray on this host, or a cluster by its address."""

    width: int
    address: str | None
    ray: Any
    prefect_ray: Any
    name: str = "ray"

    @contextmanager
    def start(self) -> Iterator[Submit]:
        """Start the workers, or connect to the cluster."""
        options = {"address": self.address, **_RAY_OPTIONS} if self.address else self._local()
        try:
            with defer_signals():  # a start that is interrupted leaves threads that crash when Python exits
                self._connect(options)
            task = self.ray.remote(max_retries=1)(run_and_return_error)  # if its worker is killed
            yield lambda job: task.remote(job).future()
        finally:
            self.ray.shutdown()

    def _connect(self, options: dict[str, Any]) -> None:
        try:
            self.ray.init(**options)
        except Exception as error:  # Ray raises the class itself if a node starts slowly
            place = f"no Ray cluster answers at {self.address}" if self.address else "Ray has not started"
            reason = str(error).split("\n")[0]
            raise StageError(f"{place}: {reason}. Run the command again, or set another --address") from error

    def task_runner(self) -> Any:
        """Return Prefect's task runner for Ray."""
        if self.address:
            return self.prefect_ray.RayTaskRunner(address=self.address, init_kwargs=_RAY_OPTIONS)
        return self.prefect_ray.RayTaskRunner(init_kwargs=self._local())

    def _local(self) -> dict[str, Any]:
        """Return the options for a worker process for each point at a time."""
        return {
            "num_cpus": self.width,
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": logging.WARNING,
            **_RAY_OPTIONS,
        }


Executor = ThreadExecutor | DaskExecutor | RayExecutor
"""Workers that run points: `start` yields the function that submits a job; `task_runner` is Prefect's."""


def build_executor(engine: str, width: int, address: str | None = None) -> Executor:
    """Return the executor *engine* (``threads``, ``dask`` or ``ray``) for *width* points at a time.

    *address* is that of an existing cluster; None starts workers on this host. Raises `ParamsError` if the
    packages of the executor are not installed, or if threads get an address.
    """
    if engine == "threads":
        if address:
            raise ParamsError(
                f"--address {address} needs a cluster, but --engine is threads. "
                "Add --engine dask or --engine ray"
            )
        return ThreadExecutor(width)
    try:
        if engine == "dask":
            address = address or os.environ.get(DASK_ADDRESS)
            distributed, prefect_dask = import_module("distributed"), import_module("prefect_dask")
            return DaskExecutor(width, address, distributed, prefect_dask)
        address = address or os.environ.get(RAY_ADDRESS)
        return RayExecutor(width, address, import_module("ray"), import_module("prefect_ray"))
    except ModuleNotFoundError as error:
        raise ParamsError(
            f"--engine {engine} needs {error.name}, which is not installed. "
            f"Run pip install 'learner-pipeline[{engine}]'"
        ) from error


def run_jobs(jobs: Sequence[Job], width: int, submit: Submit, report: Report) -> None:
    """Run *jobs*, *width* at a time, and call *report* with the error of each, or None, when it finishes.

    A failed job stops no other. One whose run store another one uses, because their data is equal, runs
    again after that. If this function is interrupted, the jobs in progress are stopped and save before it
    returns.
    """
    if not jobs:
        return
    finished: SimpleQueue[tuple[Job, Any]] = SimpleQueue()
    waiting, active, blocked = list(jobs), list[Job](), list[Job]()
    try:
        with hold_lock(jobs[0].sweep_lock):
            while waiting or active:
                while len(active) < width and (job := _next(waiting, active)):
                    waiting.remove(job)
                    active.append(job)
                    _start(job, submit, finished)
                job, future = finished.get()
                active.remove(job)
                error = _error(future)
                if active and isinstance(error, RunInUseError):
                    blocked.append(job)
                    continue
                report(job, error)
                waiting, blocked = [*blocked, *waiting], []
    except BaseException:
        for job in active:
            while not is_unlocked(job.log):
                time.sleep(PAUSE_SECONDS)
        raise


def _next(waiting: Sequence[Job], active: Sequence[Job]) -> Job | None:
    """Return the first job that may start: never two of one run, because the second resumes the first."""
    runs = {job.point.run for job in active}
    return next((job for job in waiting if job.point.run not in runs), None)


def _start(job: Job, submit: Submit, finished: "SimpleQueue[tuple[Job, Any]]") -> None:
    submit(job).add_done_callback(lambda future: finished.put((job, future)))


def _error(future: Any) -> Exception | None:
    try:
        error = future.result()
    except Exception as failure:  # noqa: BLE001  of the job or of its worker: it concerns this point only
        return failure
    return error if isinstance(error, Exception) else None
