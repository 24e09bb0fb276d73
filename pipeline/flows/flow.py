"""The flow ``learner``: the five tasks in order, for the command line, schedules and work pools.

`learner run` calls it in its own process, in which it holds the project lock (`run_from_command_line`).
Prefect calls it in a process that it starts for one run of a deployment (`pipeline.flows.deployment`).
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from prefect import State, flow, get_run_logger
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from prefect.settings import temporary_settings
from prefect.states import Completed, Failed
from pydantic import Field

from pipeline.engine.lock import project_lock
from pipeline.engine.params_journal import edit_params, restore_idle_params, restore_params
from pipeline.engine.reproduce import Outcome, reproduce, select_stages
from pipeline.engine.stage_run import run_stage
from pipeline.engine.watchdog import start_watchdog
from pipeline.flows import prefect_api, prefect_patches
from pipeline.flows.artifacts import API_ERRORS, Artifacts, short_timeout_client
from pipeline.flows.experiments import (
    Experiment,
    check_remotes,
    push_results,
    run_experiment,
    warn_of_temporary_folder,
)
from pipeline.flows.run_page import slug, write_artifacts
from pipeline.flows.run_registry import end_tasks, note_end, register_this_run
from pipeline.flows.server_outage import (
    QUICK_REQUESTS,
    UnrecordedRunError,
    explain_api_errors,
    outage_seconds,
    read_seconds,
    summarize,
    wait_for_server,
)
from pipeline.flows.task_run import TASKS, hide_expected_errors, run_recorded
from pipeline.project.check import check_stages
from pipeline.project.git import check_delivered_files
from pipeline.project.params import read_params
from pipeline.project.params_edit import check_overrides
from pipeline.project.revisions.revision import Results, read_results
from pipeline.project.yaml_files import read_definition
from stages.contracts.errors import StageError
from stages.contracts.events import Renderer
from stages.contracts.fields import MAX_SECONDS
from stages.contracts.printing import print_error

Report = Callable[[str, Outcome], None]

SERVER_VARIABLE = "LEARNER_SERVE_PID"
"""Environment variable with the process of `learner serve`, for the runs that it starts."""
WAIT_VARIABLE = "LEARNER_WAIT_SECONDS"
WAIT_SECONDS = 3600.0
"""Default time limit of a run in the workspace for acquiring the project lock."""
EVENTS_SECONDS = 10.0
"""Time limit for the server to receive the states of the tasks."""
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
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    interrupted = "dvc exp run"
    body = run_recorded
    hide_expected_errors()
    if command_line := _command_line.get():
        command_line.has_begun.set()
        body = partial(run_recorded, run=command_line.run)
    execute = partial(reproduce, run=body, force=force)
    this_run = register_this_run()
    with ExitStack() as stack:
        stack.push(partial(_end_tasks, this_run.id))
        try:
            if command_line is None:
                _prepare(overrides, experiment=experiment, push=push)
            stages = select_stages(targets, downstream=downstream)
            title = _read_title(this_run)
            name = f"{slug(title)}-{slug(this_run.name)}-{str(this_run.id)[-6:]}" if experiment else None
            if name:
                options = {"--downstream": downstream, "--force": force}
                selection = [*targets, *(option for option, is_set in options.items() if is_set)]
                run = Experiment(name, overrides, selection)
                run_experiment(run, get_run_logger(), flow_run=str(this_run.id), deadline=deadline)
                results = read_results(name) if "fit" in stages else None
            else:
                with _workspace(overrides, deadline) as report:
                    for stage in stages:
                        interrupted = stage
                        task = TASKS[stage].with_options(timeout_seconds=seconds_left(deadline))
                        outcome = task(execute).result()  # not submitted: threads receive no signal
                        report(stage, outcome)
                    results = read_results() if "fit" in stages else None
            note_end(this_run.id, Completed())
            stack.callback(_write_page, this_run, results, title)
            if push:
                push_results(name, get_run_logger().info)
        except TimeoutError:
            if not has_passed(deadline):
                raise
            return _build_timeout_state(interrupted, timeout_seconds)
    return None


@dataclass(frozen=True)
class _CommandLine:
    """The command that called the flow: it holds the project lock, and has started the watchdog."""

    report: Report
    run: Callable[[str, Renderer | None], None]
    has_begun: threading.Event = field(default_factory=threading.Event)


_command_line: ContextVar[_CommandLine | None] = ContextVar("command_line", default=None)


@contextmanager
def run_from_command_line(
    report: Report, run: Callable[[str, Renderer | None], None] = run_stage
) -> Iterator[threading.Event]:
    """Let a command that holds the project lock call `learner` in the block, for the workspace.

    *report* receives the outcome of each stage, and *run* runs its body. Yields the event that the run sets
    when it begins. If the server does not respond as an API, the block ends before that with a warning.
    Raises `StageError` if the server refuses the flow, or if the record is required.
    """
    outage_seconds()  # refuses an invalid variable
    prefect_patches.apply()
    command_line = _CommandLine(report, run)
    token = _command_line.set(command_line)
    try:
        with explain_api_errors(command_line.has_begun), temporary_settings(QUICK_REQUESTS):
            yield command_line.has_begun
    except UnrecordedRunError as error:
        if prefect_api.read_recording(prefect_api.Recording.OPTIONAL) is prefect_api.Recording.REQUIRED:
            raise
        print_error(f"warning: {error}")
    finally:
        _command_line.reset(token)


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


def _prepare(overrides: Sequence[str], *, experiment: bool, push: bool) -> None:
    """Prepare the project and check the arguments. Raises `ParamsError` and `StageError` for a mistake."""
    check_delivered_files()
    restore_idle_params(get_run_logger().warning)
    check_overrides(overrides)
    check_stages(read_definition())
    if push:
        check_remotes(experiment=experiment)
    if SERVER_VARIABLE not in os.environ:
        warn_of_temporary_folder(Path.cwd(), get_run_logger().warning, push=push)


@contextmanager
def _workspace(overrides: Sequence[str], deadline: float | None) -> Iterator[Report]:
    """Hold the project lock in the block, with *overrides* in params.yaml.

    Yields the function that receives the outcome of each stage.
    """
    if command_line := _command_line.get():
        yield command_line.report
        return
    logger = get_run_logger()
    remaining = seconds_left(deadline)
    wait_seconds = read_seconds(WAIT_VARIABLE, WAIT_SECONDS)
    start_watchdog(os.getpid())
    with project_lock(timeout_seconds=wait_seconds if remaining is None else min(wait_seconds, remaining)):
        restore_params(logger.warning)  # again, because a run may have been killed while this one waited
        with edit_params(overrides):
            yield lambda name, outcome: logger.info("%s: %s", name, outcome)


def _write_page(run: FlowRun, results: Results | None, title: str) -> None:
    """Write the artifacts of the run, as soon as the server responds; an error is a warning."""
    logger = get_run_logger()
    if wait_for_server(logger.warning) and results:
        try:
            write_artifacts(results, run, Artifacts.of_this_run(logger), title)
        except API_ERRORS as error:
            if wait_for_server(logger.warning):  # otherwise this has printed a warning
                logger.warning("the page of this run is incomplete: %s", summarize(error))


def _end_tasks(run: UUID, _: object, error: BaseException | None, *_rest: object) -> None:
    """Give the tasks of *run* whose end the server has not received its state, except after a signal."""
    has_signal = not isinstance(error, Exception | None)
    if has_signal or not wait_for_server(get_run_logger().warning):
        return
    events = threading.Thread(target=EventsWorker.instance().wait_until_empty, daemon=True)
    events.start()
    events.join(EVENTS_SECONDS)
    message = "The server has not received the end of this task"
    state: State[Any] = Failed(message=message) if error else Completed(message=message)
    with suppress(*API_ERRORS), short_timeout_client() as client:
        end_tasks(client, run, state)


def _read_title(run: FlowRun) -> str:
    """Return the name of the deployment of *run*, or that of the project's folder.

    Only the name of a deployment is read from the server, so it is read before the stages run.
    """
    if run.deployment_id:
        with suppress(*API_ERRORS), short_timeout_client() as client:
            return client.read_deployment(run.deployment_id).name
    return Path.cwd().name


def _build_timeout_state(interrupted: str, timeout_seconds: float | None) -> State[TimeoutError]:
    message = (
        f"timed out after {timeout_seconds:g} s (timeout_seconds): {interrupted} was interrupted. "
        "Finished stages and training progress are kept. Run the deployment again with the same params to "
        "resume"
    )
    return Failed(name="TimedOut", message=message, data=TimeoutError(message))
