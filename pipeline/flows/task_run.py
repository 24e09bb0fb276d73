"""The body of a stage in a Prefect task run: it logs lines, shows progress and holds GPU slots."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import TextIOBase
from logging import Logger, LoggerAdapter
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.results import get_result_store
from prefect.task_runners import ThreadPoolTaskRunner

from pipeline.engine.stage_run import run_stage
from pipeline.flows import prefect_api
from pipeline.flows.gpu_limit import gpu_slots
from pipeline.flows.progress import ProgressRenderer
from stages.contracts.events import Renderer
from stages.contracts.renderers import Renderers
from stages.renderers import LogRenderer

if TYPE_CHECKING:
    RunLogger = Logger | LoggerAdapter[Logger]


class _Lines(TextIOBase):
    """A text file whose lines become log records."""

    def __init__(self, logger: "RunLogger") -> None:
        self._logger = logger
        self._rest = ""

    def write(self, text: str) -> int:
        """Log each line that *text* completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._logger.info("%s", line)
        return len(text)

    def end(self) -> None:
        """Log an incomplete last line."""
        if self._rest:
            self.write("\n")


@contextmanager
def _log_output(logger: "RunLogger") -> Iterator[None]:
    """Log the standard output of the block instead of printing it."""
    lines = _Lines(logger)
    with redirect_stdout(lines):
        yield
    lines.end()


def run_recorded(name: str, renderer: Renderer | None = None) -> None:
    """Run stage *name*, and show its progress in the task run in progress and with *renderer*.

    The stage that trains holds one slot of the concurrency limit ``gpu`` for each GPU that it uses.
    """
    logger = get_run_logger()
    with ExitStack() as stack:
        stack.enter_context(_log_output(logger))
        if name == "fit":
            stack.enter_context(gpu_slots(logger))
            shown = ProgressRenderer.of_this_run(logger)
            renderer = Renderers([each for each in (LogRenderer(logger), shown, renderer) if each])
        run_stage(name, renderer)


@contextmanager
def join_flow_run() -> Iterator[bool]:
    """Run the tasks that are called in the block in the flow run that the environment names, if any.

    Yields False if the server of that flow run is unreachable; then the block must not call tasks.
    """
    name = os.environ.get(prefect_api.FLOW_RUN)
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
