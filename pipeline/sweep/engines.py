"""Who does the work of a sweep: threads of this process, or the workers of Dask or Ray, here or on a cluster.

The work itself is a child process for each point (`job`), so all engines do the same.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from pipeline.sweep.conducting import Submit
from pipeline.sweep.job import failure_of
from stages.contracts.errors import ParamsError


class Engine(StrEnum):
    """What ``--engine`` may say."""

    THREADS = "threads"
    DASK = "dask"
    RAY = "ray"


@dataclass(frozen=True)
class Crew:
    """An engine, and how much of it."""

    engine: Engine
    width: int
    """How many points at a time."""
    address: str | None = None
    """Of a cluster that is there; None starts workers on this host."""

    @contextmanager
    def opened(self) -> Iterator[Submit]:
        """What submits a job, with no Prefect; the workers go when the block ends."""
        if self.engine is Engine.THREADS:
            with ThreadPoolExecutor(self.width) as pool:
                yield lambda job: pool.submit(failure_of, job)
        else:
            with self._module().opened(self.width, self.address) as submit:
                yield submit

    def task_runner(self) -> Any:
        """The same as Prefect knows it; None for threads, which are Prefect's own."""
        return None if self.engine is Engine.THREADS else self._module().task_runner(self.width, self.address)

    def check(self) -> None:
        """Raise `ParamsError` where the engine is not installed, or takes no address."""
        if self.engine is not Engine.THREADS:
            self._module()
        elif self.address:
            raise ParamsError(f"--address {self.address} is of a cluster: say --engine dask or --engine ray")

    def _module(self) -> Any:
        try:
            return import_module(f"pipeline.sweep.on_{self.engine}")
        except ModuleNotFoundError as error:
            raise ParamsError(
                f"--engine {self.engine} needs {error.name}, which is not installed: "
                f"pip install 'learner-pipeline[{self.engine}]'"
            ) from error
