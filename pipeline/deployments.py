"""The flow as it is deployed, with parameters: by `learner serve`, by prefect.yaml, from the UI."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.runtime import deployment
from pydantic import Field, PositiveFloat

from pipeline.artifacts import Artifacts
from pipeline.flow import bring_up_to_date
from pipeline.goodbye import begin_goodbye, goodbye_seconds
from pipeline.isolation import Choice, run_experiment
from pipeline.lease import outlive_the_lease
from pipeline.lock import project_lock
from pipeline.overrides import PARAMS, overridden
from pipeline.results import read_results
from pipeline.sharing import check_remotes
from pipeline.sharing import push as push_results
from pipeline.showing import show
from pipeline.targets import needed
from pipeline.tasks import hide_expected_tracebacks
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.files import write_text

NOTHING: list[str] = []
WAIT = "LEARNER_WAIT_SECONDS"
WAIT_SECONDS = 3600.0
"""How long a run in the workspace waits for whoever runs there already."""
OWN_RUN = "PREFECT__FLOW_RUN_ID"
"""Prefect sets it in a process that it starts for one run."""

outlive_the_lease()  # before Prefect's engine, which imports this module, begins the run


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
        PositiveFloat | None, Field(description="Save and stop after this long; the next run goes on")
    ] = None,
) -> None:
    """Train: the five stages through DVC, in the workspace that this is served from or in a copy of it."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    hide_expected_tracebacks()
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own modules lie beside params.yaml
    names = needed(targets)
    changed = overridden(overrides)
    if push:
        check_remotes(experiment=experiment)
    with ExitStack() as stack:
        if OWN_RUN in os.environ:
            stack.callback(begin_goodbye, threading.Event(), goodbye_seconds())
        logger = get_run_logger()
        run = _this_run()
        title = str(deployment.name or "learner")
        if experiment:
            rev = f"{title}-{run.name}-{str(run.id)[-6:]}"
            choice = Choice(rev, overrides, targets)
            run_experiment(choice, logger, flow_run=str(run.id), deadline=deadline)
        else:
            rev = None
            _run_here(names, changed if overrides else None, deadline)
        if results := read_results(rev):
            show(results, run, Artifacts.of_this_run(logger), title)
        if push:
            push_results(rev, logger.info)


def _this_run() -> FlowRun:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise StageError("this flow is recorded by a Prefect server, or not run at all")
    return context.flow_run


def _run_here(names: Sequence[str], params: str | None, deadline: float | None) -> None:
    logger = get_run_logger()
    with project_lock(patience_seconds=_wait_seconds()), _params(params):
        bring_up_to_date(names, lambda name, outcome: logger.info("%s: %s", name, outcome), deadline)


@contextmanager
def _params(text: str | None) -> Iterator[None]:
    """params.yaml says *text* in the block, and after it where it ends well, as after `dvc exp run -S`.

    Else it says again what it said before, unless somebody has edited it meanwhile.
    """
    if text is None:
        yield
        return
    before = PARAMS.read_text(encoding="utf-8")
    write_text(PARAMS, text)
    try:
        yield
    except BaseException:
        if PARAMS.read_text(encoding="utf-8") == text:
            write_text(PARAMS, before)
        raise


def _wait_seconds() -> float:
    text = os.environ.get(WAIT, "")
    try:
        return float(text) if text else WAIT_SECONDS
    except ValueError as error:
        raise ParamsError(f"{WAIT} is {text!r}: it is to be a number of seconds") from error
