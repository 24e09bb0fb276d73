"""Dask as an engine: worker processes of this host, or a cluster by the address of its scheduler."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client
from prefect_dask import DaskTaskRunner

from pipeline.sweep.conducting import Submit
from pipeline.sweep.job import Job, failure_of
from stages.contracts.errors import StageError

PATIENCE_SECONDS = 20
ADDRESS = "DASK_SCHEDULER_ADDRESS"


def task_runner(width: int, address: str | None) -> Any:
    """Dask as Prefect's task runner."""
    address = address or os.environ.get(ADDRESS)
    if address:
        return DaskTaskRunner(address=address, client_kwargs={"timeout": PATIENCE_SECONDS})
    return DaskTaskRunner(cluster_kwargs=_local(width))


@contextmanager
def opened(width: int, address: str | None) -> Iterator[Submit]:
    """What submits a job to Dask itself. Raises `StageError` where no scheduler answers at *address*."""
    address = address or os.environ.get(ADDRESS)
    try:
        client = Client(address, timeout=PATIENCE_SECONDS) if address else Client(**_local(width))
    except OSError as error:
        raise StageError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:

        def submit(job: Job) -> Any:
            return client.submit(failure_of, job, pure=False, retries=0)

        yield submit


def _local(width: int) -> dict[str, Any]:
    """A worker for each point that runs at a time."""
    return {"n_workers": width, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
