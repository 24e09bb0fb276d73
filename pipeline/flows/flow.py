"""The flow ``learner``: the five tasks in order, for the command line, schedules and work pools.

`learner run` calls it in its own process, in which it holds the project lock (`run_from_command_line`).
Prefect calls it in a process that it starts for one run of a deployment (`pipeline.flows.deployment`).
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any, cast

import httpx
from prefect import State, flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_CLIENT_RETRY_EXTRA_CODES, temporary_settings
from prefect.states import Completed, Failed
from pydantic import Field

from pipeline.engine.lock import project_lock
from pipeline.engine.params_journal import edit_params, restore_idle_params, restore_params
from pipeline.engine.reproduce import Outcome, reproduce, select_stages
from pipeline.engine.watchdog import start_watchdog
from pipeline.flows.artifacts import API_ERRORS, Artifacts, short_timeout_client
from pipeline.flows.experiments import (
    Experiment,
    check_remotes,
    push_results,
    run_experiment,
    warn_of_temporary_folder,
)
from pipeline.flows.run_page import slug, write_artifacts
from pipeline.flows.run_registry import end_tasks, note_completion, register_this_run
from pipeline.flows.server_outage import (
    RETRIED_CODES,
    exit_if_unreachable,
    explain_api_errors,
    outage_message,
    outage_seconds,
    read_seconds,
    wait_for_server,
)
from pipeline.flows.task_run import run_recorded
from pipeline.flows.tasks import TASKS, hide_expected_tracebacks
from pipeline.project.check import check_stages
from pipeline.project.git import check_delivered_files
from pipeline.project.params import read_params
from pipeline.project.params_edit import check_overrides, override_params
from pipeline.project.revisions.revision import Results, read_results
from pipeline.project.yaml_files import read_definition
from stages.contracts.errors import StageError
from stages.contracts.fields import MAX_SECONDS

Report = Callable[[str, Outcome], None]

RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""Environment variable that Prefect sets in a process that it starts for one run."""
SERVER_VARIABLE = "LEARNER_SERVE_PID"
"""Environment variable with the process of `learner serve`, for the runs that it starts."""
WAIT_VARIABLE = "LEARNER_WAIT_SECONDS"
WAIT_SECONDS = 3600.0
"""Default time limit of a run in the workspace for acquiring the project lock."""
MIN_TIMEOUT_SECONDS = 0.01
"""The shortest timeout of a task, because Prefect reads a timeout of 0 as no timeout."""
ROUNDING_SECONDS = 0.1
"""The timeouts of tasks are rounded to this, because their logs show them."""
DESCRIPTION = "Train: the five stages through DVC, in the workspace of the deployment or in a copy of it."
MAX_NAME = 100
"""The most characters in the name of a flow run."""
NO_ITEMS: list[str] = []


def _name_run() -> str:
    """Return the name of the flow run that begins: its overrides, or the model, optimizer and epochs."""
    context = FlowRunContext.get()
    overrides = (context.parameters or {}).get("overrides") if context else None
    if overrides:
        return ", ".join(_shorten(override) for override in overrides)[:MAX_NAME]
    with suppress(StageError):
        params = read_params()
        built = params.build_learner
        return f"{built.model.kind}, {built.optimizer.kind}, {params.fit.num_epochs} epochs"[:MAX_NAME]
    return "learner"  # the run reports what is wrong with the params


def _shorten(override: str) -> str:
    """Return *override* with the last part of its key: ``num_epochs=3`` for ``fit.num_epochs=3``."""
    key, is_assigned, value = override.partition("=")
    return f"{key.rpartition('.')[2]}{is_assigned}{value}"


@flow(name="learner", description=DESCRIPTION, flow_run_name=_name_run, persist_result=False)
def learner(
    overrides: list[str] = NO_ITEMS,
    *,
    experiment: bool = True,
    push: bool = False,
    targets: list[str] = NO_ITEMS,
    downstream: bool = False,
    force: bool = False,
    timeout_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None,
) -> State[TimeoutError] | None:
    """Train: the five stages through DVC, in the workspace of the deployment or in a copy of it.

    Prefect shows the text of each argument in the form of a deployment.

    Args:
        overrides: Params as for `dvc exp run -S`, for example fit.num_epochs=30.
        experiment: Run as an isolated, named experiment; if false, run in the workspace.
        push: Push the cache, and the experiment, to the remotes.
        targets: Stages to bring up to date, with what they need; none means all.
        downstream: Bring the targets and the stages that depend on them up to date instead.
        force: Run stages although their dependencies are unchanged.
        timeout_seconds: Save and stop after this many seconds; the next run resumes.
    """
    request = _Request(overrides, targets, deadline_after(timeout_seconds), downstream, force)
    execute = partial(reproduce, run=run_recorded, force=force)
    hide_expected_tracebacks()
    register_this_run()
    with ExitStack() as stack:
        watch_server = _plan_exit()
        stack.push(_end_tasks)
        stack.callback(watch_server)
        try:
            if _command_line.get() is None:
                _prepare(request, experiment=experiment, push=push)
            title = _read_title()
            name = _name_experiment(title) if experiment else None
            if name:
                results = _run_experiment(request, name)
            else:
                with _workspace(request) as report:
                    for stage in request.stages:
                        with _explain_timeout(stage, request.deadline):
                            task = TASKS[stage].with_options(timeout_seconds=seconds_left(request.deadline))
                            outcome = task(execute).result()  # not submitted: threads receive no signal
                        report(stage, outcome)
                    results = read_results() if request.trains else None
            note_completion()
            stack.callback(_write_page, results, title)
            stack.callback(watch_server)  # callbacks run in reverse: this one is called first
            if push:
                push_results(name, get_run_logger().info)
        except TimeoutError as error:
            if not has_passed(request.deadline):
                raise
            return _build_timeout_state(error, timeout_seconds)
    return None


@dataclass(frozen=True)
class _Request:
    """The params and stages of one run."""

    overrides: Sequence[str]
    targets: Sequence[str]
    deadline: float | None
    """On the monotonic clock."""
    downstream: bool
    force: bool

    @cached_property
    def stages(self) -> list[str]:
        """The stages to bring up to date, in order."""
        return select_stages(self.targets, downstream=self.downstream)

    @property
    def trains(self) -> bool:
        """True if the stages include fit, which writes the results."""
        return "fit" in self.stages


@dataclass(frozen=True)
class _CommandLine:
    """The command that called the flow: it holds the project lock, and has started the watchdog."""

    report: Report
    outage_seconds: float
    has_returned: threading.Event


_command_line: ContextVar[_CommandLine | None] = ContextVar("command_line", default=None)


@contextmanager
def run_from_command_line(report: Report) -> Iterator[None]:
    """Let a command that holds the project lock call `learner` in the block, for the workspace.

    *report* receives the outcome of each stage. Raises `StageError` if the server goes away or refuses the
    flow; the process then exits within `outage_seconds`.
    """
    command_line = _CommandLine(report, outage_seconds(), threading.Event())
    token = _command_line.set(command_line)
    try:
        with explain_api_errors(), temporary_settings({PREFECT_CLIENT_RETRY_EXTRA_CODES: RETRIED_CODES}):
            yield
    except httpx.TransportError as error:
        raise StageError(outage_message()) from error
    finally:
        command_line.has_returned.set()
        _command_line.reset(token)


def deadline_after(seconds: float | None) -> float | None:
    """Return the time on the monotonic clock in *seconds* from now; None for no deadline."""
    return None if seconds is None else time.monotonic() + seconds


def seconds_left(deadline: float | None) -> float | None:
    """Return the timeout of a task that must end at *deadline*; None for no deadline."""
    if deadline is None:
        return None
    return max(MIN_TIMEOUT_SECONDS, round(deadline - time.monotonic(), 1))


def has_passed(deadline: float | None) -> bool:
    """Return whether *deadline* has passed; False for no deadline.

    A `TimeoutError` alone does not show this, because user code raises that error too.
    """
    return deadline is not None and time.monotonic() >= deadline - ROUNDING_SECONDS


def _plan_exit() -> Callable[[], None]:
    """Return the function to call after the stages, which bounds the wait for an unreachable server.

    It has no effect when it is called again, or in a process that does other work than this run.
    """
    command_line = _command_line.get()
    if command_line:
        return cache(partial(exit_if_unreachable, command_line.has_returned, command_line.outage_seconds))
    if RUN_VARIABLE in os.environ:
        return cache(partial(exit_if_unreachable, threading.Event(), outage_seconds()))
    return lambda: None


def _prepare(request: _Request, *, experiment: bool, push: bool) -> None:
    """Prepare the project and check *request*. Raises `ParamsError` and `StageError` if it cannot succeed."""
    check_delivered_files()
    restore_idle_params(get_run_logger().warning)
    check_overrides(request.overrides)
    check_stages(read_definition())
    select_stages(request.targets, downstream=request.downstream)
    if push:
        check_remotes(experiment=experiment)
    if SERVER_VARIABLE not in os.environ:
        warn_of_temporary_folder(Path.cwd(), get_run_logger().warning, push=push)


@contextmanager
def _workspace(request: _Request) -> Iterator[Report]:
    """Hold the project lock in the block, with the overrides of *request* in params.yaml.

    Yields the function that receives the outcome of each stage.
    """
    if command_line := _command_line.get():
        yield command_line.report
        return
    logger = get_run_logger()
    remaining = seconds_left(request.deadline)
    wait_seconds = read_seconds(WAIT_VARIABLE, WAIT_SECONDS)
    start_watchdog(os.getpid())
    with project_lock(timeout_seconds=wait_seconds if remaining is None else min(wait_seconds, remaining)):
        restore_params(logger.warning)  # again, because a run may have been killed while this one waited
        with edit_params(override_params(request.overrides)) if request.overrides else nullcontext():
            yield lambda name, outcome: logger.info("%s: %s", name, outcome)


@contextmanager
def _explain_timeout(stage: str, deadline: float | None) -> Iterator[None]:
    """Raise a `TimeoutError` that names *stage* if the block is interrupted at *deadline*."""
    try:
        yield
    except TimeoutError as error:
        if not has_passed(deadline):
            raise
        raise TimeoutError(f"{stage} was interrupted") from error


def _run_experiment(request: _Request, name: str) -> Results | None:
    options = {"--downstream": request.downstream, "--force": request.force}
    targets = [*request.targets, *(option for option, is_set in options.items() if is_set)]
    run = Experiment(name, request.overrides, targets)
    run_experiment(run, get_run_logger(), flow_run=str(_this_run().id), deadline=request.deadline)
    return read_results(name) if request.trains else None


def _name_experiment(title: str) -> str:
    run = _this_run()
    return f"{slug(title)}-{slug(run.name)}-{str(run.id)[-6:]}"


def _write_page(results: Results | None, title: str) -> None:
    """Write the artifacts of the run, as soon as the server responds."""
    logger = get_run_logger()
    wait_for_server(outage_seconds(), logger.warning)
    if results:
        write_artifacts(results, _this_run(), Artifacts.of_this_run(logger), title)


def _end_tasks(_: object, error: BaseException | None, *_rest: object) -> None:
    """Give the tasks whose end the server has not received the state of the flow, except after a signal."""
    run = FlowRunContext.get()
    if run is None or run.flow_run is None or not (error is None or isinstance(error, Exception)):
        return
    EventsWorker.instance().wait_until_empty()
    message = "The server has not received the end of this task"
    state: State[Any] = Failed(message=message) if error else Completed(message=message)
    with suppress(*API_ERRORS), short_timeout_client() as client:
        end_tasks(client, run.flow_run.id, state)


def _read_title() -> str:
    """Return the name of the deployment, or that of the project's folder.

    Only the name of a deployment is read from the server, so it is read before the stages run.
    """
    context = FlowRunContext.get()
    deployment = _this_run().deployment_id
    if context and deployment:
        with suppress(*API_ERRORS):
            return cast(SyncPrefectClient, context.client).read_deployment(deployment).name
    return Path.cwd().name


def _this_run() -> FlowRun:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise StageError("the flow has no flow run. Call the flow `learner`, not its function")
    return context.flow_run


def _build_timeout_state(error: TimeoutError, timeout_seconds: float | None) -> State[TimeoutError]:
    message = (
        f"timed out after {timeout_seconds:g} s (timeout_seconds): {error}. Finished stages and "
        "training progress are kept. Run the deployment again with the same params to resume"
    )
    return Failed(name="TimedOut", message=message, data=TimeoutError(message))
