"""The flow as it is deployed, with parameters: by `learner serve`, by prefect.yaml, from the UI."""

import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from uuid import UUID

from prefect import State, flow, get_run_logger
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.runtime import deployment
from prefect.states import Failed
from pydantic import Field, PositiveFloat

from pipeline.engine.lock import project_lock
from pipeline.engine.params_journal import edit_params, restore_idle_params, restore_params
from pipeline.engine.process_tree import terminate_once_with_parent
from pipeline.engine.watchdog import start_watchdog
from pipeline.flows.artifacts import Artifacts
from pipeline.flows.cancellation import accept_cancellation
from pipeline.flows.flow import bring_up_to_date, is_over
from pipeline.flows.isolation import Experiment, run_experiment
from pipeline.flows.prefect_patches import outlive_the_lease
from pipeline.flows.push import check_remotes, push_results
from pipeline.flows.results import Results, read_results
from pipeline.flows.run_page import slug, write_artifacts
from pipeline.flows.run_registry import register_flow_run, report_killed_runs
from pipeline.flows.server_outage import exit_if_unreachable, outage_seconds
from pipeline.flows.targets import select_stages
from pipeline.flows.tasks import hide_expected_tracebacks
from pipeline.flows.timeouts import read_seconds
from pipeline.params_edit import overridden
from stages.contracts.errors import StageError

NOTHING: list[str] = []
WAIT = "LEARNER_WAIT_SECONDS"
WAIT_SECONDS = 3600.0
"""How long a run in the workspace waits for whoever runs there already."""
OWN_RUN = "PREFECT__FLOW_RUN_ID"
"""Prefect sets it in a process that it starts for one run."""

SERVER = "LEARNER_SERVE_PID"
"""The process of `learner serve`, in the environment of the runs that it starts."""


def _prepare_process() -> None:
    """Prepare a process that Prefect started for one run, before the engine begins it."""
    outlive_the_lease()
    accept_cancellation()
    if OWN_RUN in os.environ:
        register_flow_run(UUID(os.environ[OWN_RUN]))
        if SERVER in os.environ:
            terminate_once_with_parent(int(os.environ[SERVER]))


_prepare_process()  # here, because Prefect's engine imports this module before it begins the run


@flow(name="learner", persist_result=False)
def scheduled_flow(
    overrides: Annotated[
        list[str], Field(description="Params as for `dvc exp run -S`, for example fit.num_epochs=30")
    ] = NOTHING,
    *,
    experiment: Annotated[
        bool,
        Field(description="As an isolated, named experiment that leaves the workspace alone; else in it"),
    ] = True,
    push: Annotated[bool, Field(description="Push the cache, and the experiment, to the remotes")] = False,
    targets: Annotated[
        list[str], Field(description="Stages to bring up to date, with what they need; none means all")
    ] = NOTHING,
    timeout_seconds: Annotated[
        PositiveFloat | None, Field(description="Save and stop after this long; the next run resumes")
    ] = None,
) -> State[TimeoutError] | None:
    """Train: the five stages through DVC, in the workspace that this is served from or in a copy of it."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    hide_expected_tracebacks()
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own modules lie beside params.yaml
    report_killed_runs()
    restore_idle_params(get_run_logger().warning)
    order = Order(overrides, targets, deadline)
    order.check()
    if push:
        check_remotes(experiment=experiment)
    with ExitStack() as stack:
        if OWN_RUN in os.environ:
            stack.callback(exit_if_unreachable, threading.Event(), outage_seconds())
        try:
            _run(order, experiment=experiment, push=push)
        except TimeoutError as error:
            if not is_over(deadline):
                raise
            message = (
                f"timed out after {timeout_seconds:g} s (timeout_seconds): {error}. Finished stages and "
                "training progress are kept. Run the deployment again with the same params to resume"
            )
            return Failed(name="TimedOut", message=message, data=TimeoutError(message))
    return None


def _run(order: "Order", *, experiment: bool, push: bool) -> None:
    title = str(deployment.name or "learner")
    name = _name_of_experiment(title) if experiment else None
    results = _run_apart(order, name) if name else _run_here(order)
    if results:
        write_artifacts(results, _this_run(), Artifacts.of_this_run(get_run_logger()), title)
    if push:
        push_results(name, get_run_logger().info)


@dataclass(frozen=True)
class Order:
    """What a run is to do."""

    overrides: Sequence[str]
    targets: Sequence[str]
    deadline: float | None
    """On the monotonic clock."""

    def check(self) -> None:
        """Raise `ParamsError` for what can never be done."""
        overridden(self.overrides)
        select_stages(self.targets)


def _this_run() -> FlowRun:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise StageError("this flow runs where a Prefect server records it: call it, not its function")
    return context.flow_run


def _name_of_experiment(title: str) -> str:
    run = _this_run()
    return f"{slug(title)}-{slug(run.name)}-{str(run.id)[-6:]}"


def _run_apart(order: Order, name: str) -> Results | None:
    choice = Experiment(name, order.overrides, order.targets)
    run_experiment(choice, get_run_logger(), flow_run=str(_this_run().id), deadline=order.deadline)
    return read_results(name)


def _run_here(order: Order) -> Results | None:
    logger = get_run_logger()
    left = math.inf if order.deadline is None else order.deadline - time.monotonic()
    start_watchdog(os.getpid())
    with project_lock(timeout_seconds=min(read_seconds(WAIT, WAIT_SECONDS), left)):
        restore_params(logger.warning)  # again: a run may have been killed while this one waited
        with edit_params(overridden(order.overrides)) if order.overrides else nullcontext():
            names = select_stages(order.targets)
            bring_up_to_date(
                names, lambda name, outcome: logger.info("%s: %s", name, outcome), order.deadline
            )
            return read_results()
