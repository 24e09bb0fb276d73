"""Flow runs of this project that are in progress, noted on disk, so that a killed one is reported to Prefect.

A killed process does not report its end: Prefect shows its run as Running and keeps its concurrency slot.
"""

import atexit
import glob
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from pipeline.flows.artifacts import API_ERRORS, short_timeout_client
from pipeline.flows.server_outage import describe_url
from stages.contracts.errors import RunInUseError, StageError
from stages.runs.layout import FLOW_RUNS_FOLDER
from stages.system.file_lock import hold_lock, is_locked, lock_holder
from stages.system.files import read_json_value, write_text

UNSENT = "The server was unreachable when this run ended"
NOT_BEGUN = "The server did not respond before this run began, or its process was killed"
SUBMISSION_SECONDS = 20.0
"""Time limit for a submitted run to start, after which `report_abandoned_submissions` reports it."""


def create_once(create: Callable[[UUID], FlowRun]) -> FlowRun:
    """Return the flow run that *create* makes the server create for an idempotency key.

    A note has the key until the run begins. If the response of the server is lost, or the process is killed
    before that, the next run in this folder ends the run that the server has created.
    """
    key = uuid4()
    _register(key, key=str(key), end=_describe(Cancelled(message=NOT_BEGUN)))
    flow_run = create(key)
    _keys[flow_run.id] = key
    return flow_run


_keys: dict[UUID, UUID] = {}
"""The idempotency keys of the flow runs that this process has created, and that have not begun."""


def register_flow_run(flow_run: UUID) -> None:
    """Note *flow_run* on disk, and hold a lock until this process exits, also by a kill."""
    _register(flow_run)
    if key := _keys.pop(flow_run, None):
        _remove(_note(key))


def _register(name: UUID, **content: object) -> None:
    note = _note(name)
    FLOW_RUNS_FOLDER.mkdir(parents=True, exist_ok=True)
    stack = ExitStack()
    try:
        stack.enter_context(hold_lock(note.with_suffix(".lock")))
    except RunInUseError:  # this process has registered it already
        return
    write_text(note, json.dumps({"api": describe_url(), **content}))
    atexit.register(stack.close)


def register_this_run() -> FlowRun:
    """Register and return the flow run that this is called in, and report the ended ones.

    Those are the runs whose state is not final. Raises `StageError` outside of a flow run.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise StageError("the flow has no flow run. Call the flow `learner`, not its function")
    register_flow_run(context.flow_run.id)
    atexit.register(_remove_if_final, context.flow_run)
    report_killed_runs()
    return context.flow_run


def note_end(flow_run: UUID, state: State[Any]) -> None:
    """Note that *flow_run* has ended in *state*, which the server does not have yet."""
    write_text(_note(flow_run), json.dumps({"api": describe_url(), "end": _describe(state)}))


def _describe(state: State[Any]) -> dict[str, str | None]:
    return {"type": state.type.value, "name": state.name, "message": state.message or UNSENT}


def report_killed_runs() -> None:
    """Report the noted flow runs whose processes have ended without a report to Prefect, which frees slots.

    A run that was killed is reported as crashed, or as cancelled if Prefect was cancelling it; another one in
    the state that is noted. Notes of another host or another API stay, and all if the API does not respond.
    """
    for note in sorted(FLOW_RUNS_FOLDER.glob("*.json")):
        lock = note.with_suffix(".lock")
        owner = lock_holder(lock)
        if is_locked(lock) or (owner and owner.host != socket.gethostname()):
            continue
        with suppress(OSError, ValueError):  # its own process has removed it
            noted = read_json_value(note)
            if noted["api"] != describe_url():
                continue
            try:
                with short_timeout_client() as client:
                    end = State.model_validate(noted["end"]) if "end" in noted else None
                    for flow_run in _find_runs(client, note, noted.get("key")):
                        _report(client, flow_run, str(owner or "an unknown process"), end)
            except ObjectNotFound:  # a user deleted the run
                pass
            except API_ERRORS:
                return
            _remove(note)


def _find_runs(client: SyncPrefectClient, note: Path, key: str | None) -> list[UUID]:
    """Return the flow run that *note* is named by, or the one that was created for *key*, if there is one."""
    if key is None:
        return [UUID(note.stem)]
    of_key = FlowRunFilter.model_validate({"idempotency_key": {"any_": [key]}})
    return [flow_run.id for flow_run in client.read_flow_runs(flow_run_filter=of_key)]


@dataclass(frozen=True)
class Service:
    """A process that serves a deployment of this project."""

    locks: str
    """Pattern of the files that the processes which serve the deployment lock."""
    release: Callable[[], None]

    def ends_last(self) -> bool:
        """Return whether no other process serves the deployment; this one counts as ended from now on."""
        self.release()
        return self._count() == 0

    def starts_first(self) -> bool:
        """Return whether no other process serves the deployment yet."""
        return self._count() == 1

    def _count(self) -> int:
        return sum(is_locked(lock) for lock in FLOW_RUNS_FOLDER.glob(self.locks))


@contextmanager
def register_service(deployment: str) -> Iterator[Service]:
    """Hold a lock that shows other processes that this one serves *deployment* in the block."""
    FLOW_RUNS_FOLDER.mkdir(parents=True, exist_ok=True)
    pattern = f"serve-{quote(deployment, safe='')}-{{}}.lock"
    lock = FLOW_RUNS_FOLDER / pattern.format(os.getpid())
    with ExitStack() as stack:
        stack.callback(lock.unlink, missing_ok=True)
        stack.enter_context(hold_lock(lock))
        yield Service(glob.escape(pattern).format("*"), stack.close)


def drop_missed_runs(deployment: UUID) -> None:
    """Cancel the runs of the schedule of *deployment* whose time has passed; other runs remain."""
    now = datetime.now(UTC)
    missed = _read_runs(
        deployment, {"name": {"any_": ["Scheduled", "Late"]}}, expected_start_time={"before_": now}
    )
    with short_timeout_client() as client:
        for flow_run in missed:
            if flow_run.auto_scheduled:
                client.set_flow_run_state(
                    flow_run.id, Cancelled(message="Missed: nothing served the deployment"), force=True
                )


def count_waiting_runs(deployment: UUID) -> int:
    """Return how many runs of *deployment* wait for the one in progress."""
    return len(_read_runs(deployment, {"name": {"any_": ["AwaitingConcurrencySlot"]}}))


def _read_runs(deployment: UUID, state: Mapping[str, Any], **more: Any) -> list[FlowRun]:
    """Return the runs of *deployment* that match the filter *state* of states, and those in *more*."""
    content = {"deployment_id": {"any_": [deployment]}, "state": state, **more}
    with short_timeout_client() as client:
        return client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(content))


def report_abandoned_submissions(deployment: UUID) -> None:
    """Report the runs of *deployment* as crashed that are pending now and do not start within the time limit.

    A process that is killed before it imports the flow leaves no note. Call this before this process submits
    runs; it returns at once, and a thread waits. It has no effect if the API does not respond to that call.
    """
    with suppress(*API_ERRORS):
        if pending := _read_runs(deployment, {"type": {"any_": ["PENDING"]}}):
            threading.Thread(target=_report_unchanged, args=(pending,), daemon=True).start()


def _report_unchanged(pending: Iterable[FlowRun]) -> None:
    """Report those of *pending* as crashed whose state is the same after the time limit.

    If the server does not respond, wait for the time limit again.
    """
    remaining = list(pending)
    while remaining:
        time.sleep(SUBMISSION_SECONDS)
        with suppress(*API_ERRORS), short_timeout_client() as client:
            while remaining:
                with suppress(ObjectNotFound):  # a user deleted the run
                    if client.read_flow_run(remaining[-1].id).state_id == remaining[-1].state_id:
                        _report(client, remaining[-1].id, "which had not started")
                remaining.pop()


def _report(client: SyncPrefectClient, flow_run: UUID, process: str, end: State[Any] | None = None) -> None:
    """Report that *flow_run* has ended in *end*, or that *process* was killed, if the server has no end."""
    state = client.read_flow_run(flow_run).state
    if state is None:
        return
    is_in_progress = state.is_running() or state.is_pending() or state.is_cancelling()
    if not is_in_progress and not (end and state.is_crashed()):
        return
    message = (
        f"The process of this run ({process}) was killed. The next run with the same params resumes from the "
        "newest checkpoint."
    )
    killed = Cancelled if state.is_cancelling() else Crashed
    final = end or killed(message=message)
    client.set_flow_run_state(flow_run, final, force=end is not None)
    end_tasks(client, flow_run, final)


def end_tasks(client: SyncPrefectClient, flow_run: UUID, state: State[Any]) -> None:
    """Set *state* for the tasks of *flow_run* that are in progress according to the server.

    The states of tasks are events, which are lost if the server does not respond for some seconds.
    """
    in_progress = TaskRunFilter.model_validate({"state": {"type": {"any_": ["PENDING", "RUNNING"]}}})
    of_run = FlowRunFilter.model_validate({"id": {"any_": [flow_run]}})
    for task_run in client.read_task_runs(flow_run_filter=of_run, task_run_filter=in_progress):
        client.set_task_run_state(task_run.id, state, force=True)


def _note(flow_run: UUID) -> Path:
    return (FLOW_RUNS_FOLDER / f"{flow_run}.json").absolute()


def _remove_if_final(flow_run: FlowRun) -> None:
    """Remove the note of *flow_run* if the server has its final state.

    Prefect reports the state after the flow, so this is called when the process exits. The server sets the
    flow run in the details of a state.
    """
    if flow_run.state and flow_run.state.is_final() and flow_run.state.state_details.flow_run_id:
        _remove(_note(flow_run.id))


def _remove(note: Path) -> None:
    note.unlink(missing_ok=True)
    note.with_suffix(".lock").unlink(missing_ok=True)
