"""A stage that DVC started in a process of its own, as a task of the flow run that started DVC."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.results import get_result_store
from prefect.task_runners import ThreadPoolTaskRunner

FLOW_RUN = "LEARNER_FLOW_RUN"
"""Names the flow run, in the environment of the process."""


@contextmanager
def member_of_flow_run() -> Iterator[None]:
    """The tasks called in the block are those of the flow run that the environment names, if it names one."""
    name = os.environ.get(FLOW_RUN)
    if not name:
        yield
        return
    client = get_client(sync_client=True)
    context = FlowRunContext(
        flow_run=client.read_flow_run(UUID(name)),
        client=client,
        task_runner=ThreadPoolTaskRunner(),
        result_store=get_result_store(),
        detached=True,
    )
    with context:
        yield
