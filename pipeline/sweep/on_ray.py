"""Ray as an engine: worker processes of this host, or a cluster by its address."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from prefect_ray import RayTaskRunner

from pipeline.sweep.conducting import Submit
from pipeline.sweep.job import Job, failure_of
from stages.contracts.errors import StageError

ADDRESS = "RAY_ADDRESS"
_OF_THE_CLUSTER = {"runtime_env": {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}}
"""Ray hides the GPUs from work that asks it for none; ours are handed out by claims."""


def task_runner(width: int, address: str | None) -> Any:
    """Ray as Prefect's task runner."""
    address = address or os.environ.get(ADDRESS)
    if address:
        return RayTaskRunner(address=address, init_kwargs=_OF_THE_CLUSTER)
    return RayTaskRunner(init_kwargs=_local(width))


@contextmanager
def opened(width: int, address: str | None) -> Iterator[Submit]:
    """What submits a job to Ray itself. Raises `StageError` where no cluster answers at *address*."""
    address = address or os.environ.get(ADDRESS)
    try:
        ray.init(address=address, **_OF_THE_CLUSTER) if address else ray.init(**_local(width))
    except (ConnectionError, ValueError) as error:
        raise StageError(f"no Ray cluster answers at {address}: {error}") from error
    try:
        work = ray.remote(max_retries=0)(failure_of)

        def submit(job: Job) -> Any:
            return work.remote(job).future()

        yield submit
    finally:
        ray.shutdown()


def _local(width: int) -> dict[str, Any]:
    return {"num_cpus": width, "include_dashboard": False, "log_to_driver": False, **_OF_THE_CLUSTER}
