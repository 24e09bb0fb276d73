"""A stage that DVC started in a process of its own, as a task of the flow run that started DVC."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.results import get_result_store
from prefect.task_runners import ThreadPoolTaskRunner

from pipeline.flows import prefect_api

FLOW_RUN = prefect_api.FLOW_RUN


@contextmanager
def join_flow_run() -> Iterator[bool]:
    """The tasks called in the block are those of the flow run that the environment names, if it names one.

    What the block is given is False where the server of that flow run has gone: then it must do without.
    """
    name = os.environ.get(FLOW_RUN)
    if not name:
        yield True
        return
    client = get_client(sync_client=True)
    try:
        flow_run = client.read_flow_run(UUID(name))
    except httpx.TransportError:
        yield False
        return
    context = FlowRunContext(
        flow_run=flow_run,
        client=client,
        task_runner=ThreadPoolTaskRunner(),
        result_store=get_result_store(),
        detached=True,
    )
    with context:
        yield True
