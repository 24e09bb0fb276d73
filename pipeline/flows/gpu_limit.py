"""The concurrency limit ``gpu``: a training that uses GPUs holds as many of its slots while it trains."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger, LoggerAdapter
from typing import Any

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from pipeline.flows.artifacts import API_ERRORS
from pipeline.params import read_params
from stages.contracts.errors import StageError
from stages.learner import find_device

LIMIT_NAME = "gpu"


def count_gpus() -> int:
    """How many accelerators ``fit`` trains on, as params.yaml and this machine have it."""
    named = read_params().fit.device
    names = [named] if isinstance(named, str) else named
    return sum(find_device(name).type != "cpu" for name in names)


@contextmanager
def gpu_slots(logger: "Logger | LoggerAdapter[Any]", count: int | None = None) -> Iterator[None]:
    """Hold *count* slots (as many as ``fit`` uses GPUs, where it is not said) while the block runs.

    It waits until they are free. A server without such a limit gives them at once. One that goes away while
    they are held costs nothing but a warning: it frees them itself, after five minutes.
    Raises `StageError` where the limit can never give so many.
    """
    wanted = count_gpus() if count is None else count
    if not wanted:
        yield
        return
    slots = concurrency(LIMIT_NAME, occupy=wanted, raise_on_lease_renewal_failure=False)
    try:
        slots.__enter__()
    except httpx.TransportError as error:
        logger.warning("trains without the slots of %r, as the server is gone: %s", LIMIT_NAME, error)
        yield
        return
    except ConcurrencySlotAcquisitionError as error:
        raise StageError(
            f"{wanted} slots of the concurrency limit {LIMIT_NAME!r} are not to be had: {error}. "
            f"`prefect gcl inspect {LIMIT_NAME}` shows the limit"
        ) from error
    logger.info("holds what it needs of the limit %r: %d", LIMIT_NAME, wanted)
    try:
        yield
    finally:
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
                slots.__exit__(None, None, None)
        except API_ERRORS as error:
            logger.warning("the slots of %r are not given back: %s", LIMIT_NAME, error)
