"""The five stages as versioned Prefect tasks.

Each task is called with the function that executes its stage: `pipeline.engine.reproduce.reproduce` in a
flow run, because DVC must still decide whether the stage runs, or `pipeline.flows.task_run.run_recorded` in a
process that DVC started to run the stage.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from httpx import HTTPError
from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import PrefectException
from prefect.states import Completed

from stages import build_learner, create_artifact_dir, fit, load_data, save_model
from stages.contracts.errors import StageError, UserCodeError

if TYPE_CHECKING:
    from pipeline.engine.reproduce import Outcome

EXPECTED_ERRORS = (StageError, TimeoutError, HTTPError, PrefectException)
"""Also those of a server that does not respond, or that has cancelled a run before it begins."""
Execute = Callable[[str], "Outcome | None"]
"""Executes the stage of that name. The outcome None means that it ran."""


@task(name="create-artifact-dir", version=create_artifact_dir.VERSION, cache_policy=NO_CACHE)
def create_artifact_dir_task(execute: Execute) -> State[Any]:
    """Create the artifact directory."""
    return _build_state("create-artifact-dir", execute("create-artifact-dir"))


@task(name="load-data", version=load_data.VERSION, cache_policy=NO_CACHE)
def load_data_task(execute: Execute) -> State[Any]:
    """Prepare the data."""
    return _build_state("load-data", execute("load-data"))


@task(name="build-learner", version=build_learner.VERSION, cache_policy=NO_CACHE)
def build_learner_task(execute: Execute) -> State[Any]:
    """Build the records that training starts from."""
    return _build_state("build-learner", execute("build-learner"))


def is_worth_a_retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Return whether a retry may succeed: after a mistake or a requested timeout it cannot."""
    error = state.data
    if isinstance(error, UserCodeError):
        return not error.is_mistake
    return not isinstance(error, StageError | TimeoutError)


@task(
    name="fit",
    version=fit.VERSION,
    cache_policy=NO_CACHE,
    retries=2,
    retry_condition_fn=is_worth_a_retry,
)
def fit_task(execute: Execute) -> State[Any]:
    """Train the model. A retry resumes from the newest checkpoint of the previous attempt."""
    return _build_state("fit", execute("fit"))


@task(name="save-model", version=save_model.VERSION, cache_policy=NO_CACHE)
def save_model_task(execute: Execute) -> State[Any]:
    """Save the trained model."""
    return _build_state("save-model", execute("save-model"))


TASKS = {
    "create-artifact-dir": create_artifact_dir_task,
    "load-data": load_data_task,
    "build-learner": build_learner_task,
    "fit": fit_task,
    "save-model": save_model_task,
}


def _build_state(name: str, outcome: "Outcome | None") -> State[Any]:
    """Return the final state of the task run of stage *name*, with *outcome* as its result."""
    if outcome is None or outcome == "ran":
        return Completed(message=f"{name} ran", data=outcome)
    return Completed(name="Cached", message=f"DVC: {outcome}", data=outcome)


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
