"""The five stages as versioned Prefect tasks.

A task is told by which *door* its stage goes: through DVC in this process (`reproduce`, in the flow), or
straight to the body (`run_recorded`, in a process that DVC itself started).
"""

import logging
from collections.abc import Callable
from typing import Any

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import Completed

from stages import build_learner, create_artifact_dir, fit, load_data, save_model
from stages.contracts.errors import StageError, UserCodeError

Door = Callable[[str], object]


@task(name="create-artifact-dir", version=create_artifact_dir.VERSION, cache_policy=NO_CACHE)
def create_artifact_dir_task(door: Door) -> State[Any]:
    """Make the artifact directory."""
    return _through(door, "create-artifact-dir")


@task(name="load-data", version=load_data.VERSION, cache_policy=NO_CACHE)
def load_data_task(door: Door) -> State[Any]:
    """Prepare the data."""
    return _through(door, "load-data")


@task(name="build-learner", version=build_learner.VERSION, cache_policy=NO_CACHE)
def build_learner_task(door: Door) -> State[Any]:
    """Make what the training starts from."""
    return _through(door, "build-learner")


def is_worth_a_retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Return whether a retry may succeed: a mistake remains one, and a timeout was asked for."""
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
def fit_task(door: Door) -> State[Any]:
    """Train. A retry goes on from what the attempt before it saved."""
    return _through(door, "fit")


@task(name="save-model", version=save_model.VERSION, cache_policy=NO_CACHE)
def save_model_task(door: Door) -> State[Any]:
    """Save the trained model."""
    return _through(door, "save-model")


TASKS = {
    "create-artifact-dir": create_artifact_dir_task,
    "load-data": load_data_task,
    "build-learner": build_learner_task,
    "fit": fit_task,
    "save-model": save_model_task,
}


def _through(door: Door, name: str) -> State[Any]:
    outcome = door(name)
    if outcome is None or outcome == "ran":
        return Completed(message=f"{name} ran")
    return Completed(name="Cached", message=f"DVC: {outcome}")


def hide_expected_tracebacks() -> None:
    """Have Prefect log a `StageError` and a time-out as a message alone; others keep their traceback."""
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        logging.getLogger(name).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], StageError | TimeoutError):
        record.exc_info = None
    return True
