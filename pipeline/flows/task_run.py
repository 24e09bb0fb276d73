"""The stages as Prefect tasks, whose runs log lines, show progress and hold GPU slots."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from io import TextIOBase
from logging import Logger, LoggerAdapter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from httpx import HTTPError
from prefect import State, Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import TaskRun
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.results import get_result_store
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from pipeline.engine.rank_launcher import needs_launch
from pipeline.engine.stage_run import run_stage
from pipeline.flows import prefect_api, prefect_patches
from pipeline.flows.artifacts import API_ERRORS, Artifacts, ProgressRenderer
from pipeline.flows.server_outage import UnrecordedRunError, explain_api_errors, summarize
from pipeline.project.params import read_params
from pipeline.project.versions import VERSIONS
from stages import devices
from stages.contracts.errors import StageError, UserCodeError
from stages.contracts.events import Renderer, Renderers
from stages.learner import from_params
from stages.renderers import LogRenderer

if TYPE_CHECKING:
    from pipeline.engine.reproduce import Outcome

    RunLogger = Logger | LoggerAdapter[Logger]

GPU_LIMIT = "gpu"
"""Name of the concurrency limit: training holds one of its slots for each GPU that it uses."""
DESCRIPTIONS = {
    "create-artifact-dir": "Create the artifact directory.",
    "load-data": "Prepare the data.",
    "build-learner": "Build the records that training starts from.",
    "fit": "Train the model. A retry resumes from the newest checkpoint of the previous attempt.",
    "save-model": "Save the trained model.",
}
"""The descriptions of the tasks, by stage."""

EXPECTED_ERRORS = (StageError, TimeoutError, HTTPError, PrefectException)
"""Also those of a server that does not respond, or that has cancelled a run before it begins."""
Execute = Callable[[str], "Outcome | None"]
"""Executes the stage of that name. The outcome None means that it ran."""


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


def run_recorded(name: str, run: Callable[[str, Renderer | None], None] = run_stage) -> None:
    """Run stage *name* by *run*, and show its progress in the task run in progress.

    The stage that trains holds one slot of the concurrency limit ``gpu`` for each GPU that it uses.
    """
    prefect_patches.apply()
    logger = get_run_logger()
    renderer: Renderer | None = None
    with ExitStack() as stack:
        stack.enter_context(_log_output(logger))
        if name == "fit":
            stack.enter_context(gpu_slots(logger, count_gpus()))
            prints_lines = needs_launch(read_params().fit)  # rank 0 does
            shown = ProgressRenderer(Artifacts.of_this_run(logger))
            renderer = shown if prints_lines else Renderers([LogRenderer(logger), shown])
        run(name, renderer)


def count_gpus() -> int:
    """Return the number of accelerators that ``fit`` uses, from params.yaml and this machine."""
    return sum(
        devices.find_device(name).type != "cpu" for name in from_params.list_devices(read_params().fit)
    )


@contextmanager
def gpu_slots(logger: "RunLogger", count: int) -> Iterator[None]:
    """Hold *count* slots of the limit in the block.

    Waits until the slots are free. A server without the limit grants them at once. If the server becomes
    unreachable while they are held, a warning is logged, and the server frees them after five minutes.
    Raises `StageError` if the limit has fewer slots.
    """
    if not count:
        yield
        return
    slots = concurrency(GPU_LIMIT, occupy=count, raise_on_lease_renewal_failure=False)
    try:
        slots.__enter__()
    except ConcurrencySlotAcquisitionError as error:
        raise StageError(
            f"cannot acquire {count} slots of the concurrency limit {GPU_LIMIT!r}: {error}. "
            f"Run `prefect gcl inspect {GPU_LIMIT}` to see the limit"
        ) from error
    except API_ERRORS as error:
        logger.warning("training without slots of the limit %r: %s", GPU_LIMIT, summarize(error))
        yield
        return
    logger.info("acquired slots of the limit %r: %d", GPU_LIMIT, count)
    try:
        yield
    finally:
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
                slots.__exit__(None, None, None)
        except API_ERRORS as error:
            logger.warning("the slots of the limit %r are not released: %s", GPU_LIMIT, error)


def is_worth_a_retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Return whether a retry may succeed: after a mistake or a requested timeout it cannot."""
    error = state.data
    if isinstance(error, UserCodeError):
        return not error.is_mistake
    return not isinstance(error, StageError | TimeoutError)


def _build_task(name: str, description: str) -> Task[[Execute], State[Any]]:
    """Return the task of stage *name*, whose final state has the outcome of the stage as its result."""

    @task(
        name=name,
        description=description,
        version=VERSIONS[name],
        cache_policy=NO_CACHE,
        retries=2 if name == "fit" else 0,
        retry_condition_fn=is_worth_a_retry,
    )
    def run_task(execute: Execute) -> State[Any]:
        outcome = execute(name)
        if outcome is None or outcome == "ran":
            return Completed(message=f"{name} ran", data=outcome)
        return Completed(name="Cached", message=f"DVC: {outcome}", data=outcome)

    return run_task


TASKS = {name: _build_task(name, description) for name, description in DESCRIPTIONS.items()}
"""The five stages as versioned Prefect tasks.

Each task is called with the function that executes its stage: `pipeline.engine.reproduce.reproduce` in a
flow run, because DVC must still decide whether the stage runs, or `run_recorded` in a process that DVC
started to run the stage.
"""


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


def hide_expected_errors() -> None:
    """Have Prefect log an error of `EXPECTED_ERRORS` as a message only; other errors keep their traceback.

    It prints nothing for an event that the server does not accept: the end of the run reports an outage.
    """
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        logging.getLogger(name).addFilter(_remove_traceback)
    logging.getLogger("prefect._internal.concurrency").addFilter(_is_about_no_event)
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)


def _is_about_no_event(record: logging.LogRecord) -> bool:
    return "failed to process item" not in str(record.msg)


def _remove_traceback(record: logging.LogRecord) -> bool:
    """Remove the traceback of an expected error from *record*; return True, since no record is dropped."""
    if record.exc_info and isinstance(record.exc_info[1], EXPECTED_ERRORS):
        record.exc_info = None
    return True
