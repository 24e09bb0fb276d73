"""The concurrency limit ``gpu``: training holds one of its slots for each GPU that it uses."""

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
    """Return the number of accelerators that ``fit`` uses, from params.yaml and this machine."""
    named = read_params().fit.device
    names = [named] if isinstance(named, str) else named
    return sum(find_device(name).type != "cpu" for name in names)


@contextmanager
def gpu_slots(logger: "Logger | LoggerAdapter[Any]", count: int | None = None) -> Iterator[None]:
    """Hold *count* slots of the limit in the block; the default is the number of GPUs that ``fit`` uses.

    Waits until the slots are free. A server without the limit grants them at once. If the server becomes
    unreachable while they are held, a warning is logged, and the server frees them after five minutes.
    Raises `StageError` if the limit has fewer slots.
    """
    wanted = count_gpus() if count is None else count
    if not wanted:
        yield
        return
    slots = concurrency(LIMIT_NAME, occupy=wanted, raise_on_lease_renewal_failure=False)
    try:
        slots.__enter__()
    except httpx.TransportError as error:
        logger.warning(
            "training without slots of the limit %r, because the server is unreachable: %s", LIMIT_NAME, error
        )
        yield
        return
    except ConcurrencySlotAcquisitionError as error:
        raise StageError(
            f"cannot acquire {wanted} slots of the concurrency limit {LIMIT_NAME!r}: {error}. "
            f"Run `prefect gcl inspect {LIMIT_NAME}` to see the limit"
        ) from error
    logger.info("acquired slots of the limit %r: %d", LIMIT_NAME, wanted)
    try:
        yield
    finally:
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
                slots.__exit__(None, None, None)
        except API_ERRORS as error:
            logger.warning("the slots of the limit %r are not released: %s", LIMIT_NAME, error)
