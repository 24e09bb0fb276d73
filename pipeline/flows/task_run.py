"""The body of a stage in a Prefect task run: it logs lines, shows progress and holds GPU slots."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from io import TextIOBase
from logging import Logger, LoggerAdapter
from typing import TYPE_CHECKING
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext
from prefect.results import get_result_store
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from pipeline.engine.rank_launcher import needs_launch
from pipeline.engine.stage_run import run_stage
from pipeline.flows import prefect_api, prefect_patches
from pipeline.flows.artifacts import API_ERRORS, ProgressRenderer
from pipeline.flows.server_outage import UnrecordedRunError, explain_api_errors, summarize
from pipeline.flows.tasks import TASKS, hide_expected_errors
from pipeline.project.params import read_params
from stages import devices
from stages.contracts.errors import StageError
from stages.contracts.events import Renderer, Renderers
from stages.learner import from_params
from stages.renderers import LogRenderer

if TYPE_CHECKING:
    RunLogger = Logger | LoggerAdapter[Logger]

GPU_LIMIT = "gpu"
"""Name of the concurrency limit: training holds one of its slots for each GPU that it uses."""


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
    prefect_patches.apply()
    logger = get_run_logger()
    with ExitStack() as stack:
        stack.enter_context(_log_output(logger))
        if name == "fit":
            stack.enter_context(gpu_slots(logger))
            prints_lines = needs_launch(read_params().fit)  # rank 0 does
            lines = None if prints_lines else LogRenderer(logger)
            shown = ProgressRenderer.of_this_run(logger)
            renderer = Renderers([candidate for candidate in (lines, shown, renderer) if candidate])
        run_stage(name, renderer)


def count_gpus() -> int:
    """Return the number of accelerators that ``fit`` uses, from params.yaml and this machine."""
    return sum(
        devices.find_device(name).type != "cpu" for name in from_params.list_devices(read_params().fit)
    )


@contextmanager
def gpu_slots(logger: "RunLogger", count: int | None = None) -> Iterator[None]:
    """Hold *count* slots of the limit in the block; the default is the number of GPUs that ``fit`` uses.

    Waits until the slots are free. A server without the limit grants them at once. If the server becomes
    unreachable while they are held, a warning is logged, and the server frees them after five minutes.
    Raises `StageError` if the limit has fewer slots.
    """
    wanted = count_gpus() if count is None else count
    if not wanted:
        yield
        return
    slots = concurrency(GPU_LIMIT, occupy=wanted, raise_on_lease_renewal_failure=False)
    try:
        slots.__enter__()
    except ConcurrencySlotAcquisitionError as error:
        raise StageError(
            f"cannot acquire {wanted} slots of the concurrency limit {GPU_LIMIT!r}: {error}. "
            f"Run `prefect gcl inspect {GPU_LIMIT}` to see the limit"
        ) from error
    except API_ERRORS as error:
        logger.warning("training without slots of the limit %r: %s", GPU_LIMIT, summarize(error))
        yield
        return
    logger.info("acquired slots of the limit %r: %d", GPU_LIMIT, wanted)
    try:
        yield
    finally:
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
                slots.__exit__(None, None, None)
        except API_ERRORS as error:
            logger.warning("the slots of the limit %r are not released: %s", GPU_LIMIT, error)


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
    except API_ERRORS:
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


def run_as_task(name: str) -> bool:
    """Run stage *name* as a task run, of the flow run that the environment names, if any.

    Returns False, and does not run the stage, if the server does not respond.
    """
    hide_expected_errors()
    has_begun = threading.Event()

    def execute(stage: str) -> None:
        has_begun.set()
        run_recorded(stage)

    with suppress(UnrecordedRunError), join_flow_run() as is_joined:
        if is_joined:
            with explain_api_errors(has_begun):
                TASKS[name](execute)
    return has_begun.is_set()
