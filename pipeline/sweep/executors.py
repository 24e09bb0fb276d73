"""Executors of a sweep: threads of this process, or the workers of Dask or Ray, on this host or on a cluster.

Every executor runs the same function, `run_and_return_error`. A worker that runs it has one server of points,
which forks a process for each point (see `point_server.py`).
"""

import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from pipeline.engine.signals import defer_signals
from pipeline.sweep.job import Job, run_and_return_error
from pipeline.sweep.scheduler import Submit
from stages.contracts.errors import ParamsError, StageError

TIMEOUT_SECONDS = 20
"""Limit for the connection to a Dask scheduler."""
DASK_ADDRESS = "DASK_SCHEDULER_ADDRESS"
RAY_ADDRESS = "RAY_ADDRESS"
"""Environment variables with the default of ``--address``."""
_RAY_OPTIONS = {"runtime_env": {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}}
"""Ray hides the GPUs from tasks that request none, but here each point claims its own GPU."""


class Executor(Protocol):
    """A pool of workers that runs points."""

    @property
    def name(self) -> str:
        """The value of ``--engine``."""
        ...

    @property
    def width(self) -> int:
        """The number of points at a time."""
        ...

    def start(self) -> AbstractContextManager[Submit]:
        """Start the workers, without Prefect, and return the function that submits a job to them.

        The workers stop when the block ends. Raises `StageError` if the cluster is unreachable.
        """
        ...

    def task_runner(self) -> Any:
        """Return Prefect's task runner for these workers; None for threads, which are its default."""
        ...


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

    def task_runner(self) -> None:
        """Return None: threads are the default of Prefect."""


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
        """Start the workers, or connect to the cluster."""
        with ExitStack() as stack:
            client = stack.enter_context(self._connect() if self.address else self._start_workers(stack))

            def submit(job: Job) -> Any:
                return client.submit(run_and_return_error, job, pure=False, retries=0)

            yield submit

    def _connect(self) -> Any:
        try:
            return self.distributed.Client(self.address, timeout=TIMEOUT_SECONDS)
        except OSError as error:
            raise StageError(
                f"no Dask scheduler answers at {self.address}: {error}. Start one, or set another --address"
            ) from error

    def _start_workers(self, stack: ExitStack) -> Any:
        return self.distributed.Client(stack.enter_context(self.distributed.LocalCluster(**self._local())))

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
            task = self.ray.remote(max_retries=0)(run_and_return_error)

            def submit(job: Job) -> Any:
                return task.remote(job).future()

            yield submit
        finally:
            self.ray.shutdown()

    def _connect(self, options: dict[str, Any]) -> None:
        try:
            self.ray.init(**options)
        except (ConnectionError, ValueError) as error:
            raise StageError(
                f"no Ray cluster answers at {self.address}: {error}. Start one, or set another --address"
            ) from error

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
