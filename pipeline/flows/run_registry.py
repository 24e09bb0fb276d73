"""Flow runs of this project that are in progress, noted on disk, so that a killed one is reported to Prefect.

A killed process does not report its end: Prefect shows its run as Running and keeps its concurrency slot.
"""

import atexit
import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Crashed

from pipeline.flows.artifacts import API_ERRORS, short_timeout_client
from stages.contracts.errors import RunInUseError
from stages.contracts.text import hide_passwords
from stages.runs.layout import FLOW_RUNS_FOLDER
from stages.system.file_lock import hold_lock, is_locked, lock_holder
from stages.system.files import write_text

SUBMISSION_SECONDS = 20.0
"""Time limit for a submitted run to start, after which `report_abandoned_submissions` reports it."""


def register_flow_run(flow_run: UUID) -> None:
    """Note *flow_run* on disk until this process exits, and hold a lock that a kill releases."""
    note = (FLOW_RUNS_FOLDER / f"{flow_run}.json").absolute()
    FLOW_RUNS_FOLDER.mkdir(parents=True, exist_ok=True)
    stack = ExitStack()
    try:
        stack.enter_context(hold_lock(note.with_suffix(".lock")))
    except RunInUseError:  # this process has registered it already
        return
    write_text(note, json.dumps({"api": _describe_api()}))
    stack.callback(_remove, note)
    atexit.register(stack.close)  # not at the end of the flow: Prefect reports the final state after that


def register_this_run() -> None:
    """Register the flow run that this is called in, and report the killed ones."""
    context = FlowRunContext.get()
    if context and context.flow_run:
        register_flow_run(context.flow_run.id)
    report_killed_runs()


def report_killed_runs() -> None:
    """Report every noted flow run whose process was killed to Prefect as crashed, which frees its slot.

    Notes of another host or another API stay, and all of them if the API does not respond.
    """
    for note in sorted(FLOW_RUNS_FOLDER.glob("*.json")):
        lock = note.with_suffix(".lock")
        owner = lock_holder(lock)
        if is_locked(lock) or (owner and owner.host != socket.gethostname()):
            continue
        with suppress(OSError, ValueError):  # its own process has removed it
            if json.loads(note.read_bytes())["api"] != _describe_api():
                continue
            try:
                with short_timeout_client() as client:
                    _report(client, UUID(note.stem), str(owner or "an unknown process"))
            except ObjectNotFound:  # a user deleted the run
                pass
            except API_ERRORS:
                return
            _remove(note)


def report_abandoned_submissions(deployment: UUID) -> None:
    """Report the runs of *deployment* as crashed that are pending now and do not start within the time limit.

    A process that is killed before it imports the flow leaves no note. Call this before this process submits
    runs; it returns at once, and a thread waits. It has no effect if the API does not respond.
    """
    with suppress(*API_ERRORS):
        if pending := _pending(deployment):
            threading.Thread(target=_report_unchanged, args=(pending,), daemon=True).start()


def _pending(deployment: UUID) -> dict[UUID, UUID | None]:
    """Return the id of the state of each pending run of *deployment*."""
    pending = FlowRunFilter.model_validate(
        {"state": {"type": {"any_": ["PENDING"]}}, "deployment_id": {"any_": [deployment]}}
    )
    with short_timeout_client() as client:
        flow_runs = client.read_flow_runs(flow_run_filter=pending)
    return {flow_run.id: flow_run.state_id for flow_run in flow_runs}


def _report_unchanged(pending: Mapping[UUID, UUID | None]) -> None:
    """Report those of *pending* as crashed whose state is the same after the time limit."""
    time.sleep(SUBMISSION_SECONDS)
    with suppress(*API_ERRORS), short_timeout_client() as client:
        for flow_run, state in pending.items():
            if client.read_flow_run(flow_run).state_id == state:
                _report(client, flow_run, "which had not started")


def _report(client: SyncPrefectClient, flow_run: UUID, process: str) -> None:
    state = client.read_flow_run(flow_run).state
    if state is None or state.is_final():
        return
    message = (
        f"The process of this run ({process}) was killed. The next run with the same params resumes from the "
        "newest checkpoint."
    )
    report = Cancelled if state.is_cancelling() else Crashed
    client.set_flow_run_state(flow_run, report(message=message))


def _describe_api() -> str:
    """Return the address of the API without a password."""
    return hide_passwords(PREFECT_API_URL.value() or "")


def _remove(note: Path) -> None:
    note.unlink(missing_ok=True)
    note.with_suffix(".lock").unlink(missing_ok=True)
