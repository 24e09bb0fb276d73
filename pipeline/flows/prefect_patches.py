"""The private names of Prefect that this project replaces, and the functions that replace them.

`apply` checks the names and replaces them in this process. An import of this module replaces none.

* The lease keeper. A run of a deployment renews its slot in the deployment's concurrency limit, and Prefect
  ends the run if the server does not respond for some minutes. With the replacement the run continues with a
  warning. The server then gives the slot to another run, which waits for the project lock.
* The final state of a run. Prefect raises an error if the server does not respond when the run has ended, and
  then reports another final state. With the replacement the run ends as it has, and a note on disk has its
  state for the next run to report. A process that Prefect has started exits with code 1.
* The creation of a flow run. Prefect repeats a request whose response is lost, and the server then creates a
  second run, while the first one stays pending. With the replacement the request has an idempotency key.
* The commit of a cancellation. Prefect's runner announces it before it sends SIGTERM, and the run accepts it
  only if Prefect's own handler of SIGTERM is installed. A stage installs a handler that defers the signal.
  Without the replacement the run reports itself as Crashed, and not as Cancelled.
* The loops of the runner. Prefect's runner exits after three failed polls, and ends the runs in progress, and
  the observer of cancellations stops. With the replacement a loop continues until the server responds.
* The events of the observers. They stop when the server closes the connection, as at a restart. With the
  replacement they connect again, and ask for what the events have not reported.
* The start of the runner. It fails if the server sends something else than HTTP when the runner connects to
  send events. With the replacement the runner starts without sending them.
* The sending of logs. Prefect prints an error for each batch that the server does not accept, while the end
  of the run reports an outage.
* The drain of a service. A forked process, such as a worker of a `torch.utils.data.DataLoader`, resets
  Prefect's log and event services, and fails at its exit when it drains them: it exits with code 1, which
  torch raises as an error in the run. With the replacement a service that was reset is not drained, nor one
  whose server does not respond any more: Prefect waits for some seconds for each event.
* The random numbers of threads. A thread of Prefect sends a ping every 20 seconds, whose content websockets
  draws from Python's global generator, and a repeated request waits for a time that Prefect draws from it: a
  run whose model or data use that generator had other numbers afterwards. With the replacements they come
  from the system.
"""

import asyncio
import math
import os
import random
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, State
from prefect.events.clients import NullEventsClient
from prefect.logging import get_logger

from pipeline.engine.signals import DeferredSignals
from pipeline.flows.artifacts import API_ERRORS
from pipeline.flows.run_registry import create_once, note_end
from pipeline.flows.server_outage import (
    RUN_VARIABLE,
    exit_with_outage,
    has_given_up,
    is_refusal,
    summarize,
    wait_for_server,
)
from stages.contracts.printing import print_error
from stages.system.patches import Patch, apply_patches

CHECKS = {
    "FlowRunCancellingObserver": "_check_for_cancelled_flow_runs",
    "FlowRunSuspendingObserver": "_check_for_suspended_flow_runs",
}
"""The method of each of Prefect's observers that asks for what no event has reported."""
PING_BYTES = 4


def _continue_without_lease(original: Any, lease: UUID, seconds: float, **options: Any) -> Any:
    return original(lease, seconds, **(options | {"raise_on_lease_renewal_failure": False}))


def _note_unsent_end(
    original: Any, client: object, state: State[Any], flow_run_id: UUID, *force: bool, **options: bool
) -> State[Any]:
    propose: Callable[[], State[Any]] = partial(original, client, state, flow_run_id, *force, **options)
    if not state.is_final():
        return propose()
    try:
        if wait_for_server(_warn):
            return propose()
    except API_ERRORS as error:
        if is_refusal(error):
            raise
        _warn(f"the next run in this folder reports the end of this one: {summarize(error)}")
    note_end(flow_run_id, state)
    if RUN_VARIABLE in os.environ:
        exit_with_outage()
    return state


def _create_flow_run_once(original: Any, client: Any, *arguments: Any, **options: Any) -> FlowRun:
    def create(key: UUID) -> Any:
        def request(method: str, path: str, **content: Any) -> Any:
            if path == "/flow_runs/":
                content["json"] = content["json"] | {"idempotency_key": str(key)}
            return client.request(method, path, **content)

        return original(SimpleNamespace(request=request), *arguments, **options)

    return create_once(create)


def _warn(message: str) -> None:
    """Print *message*: a logger of Prefect needs the context of the run, which has ended."""
    print_error(f"warning: {message}")


def _commit_while_deferred(
    original: Any,
    commit_intent: Callable[[], None],
    clear_intent: Callable[[], None],
    send_ack: Callable[[], None],
    *trigger_cancel: Any,
    **options: Any,
) -> bool:
    handler: Any = signal.getsignal(signal.SIGTERM)
    if not isinstance(getattr(handler, "__self__", None), DeferredSignals):
        return bool(original(commit_intent, clear_intent, send_ack, *trigger_cancel, **options))
    commit_intent()  # as Prefect does if its own handler is installed
    try:
        send_ack()
    except OSError:
        clear_intent()
        return False
    return True


async def _outlive_outages(
    original: Any, workload: Callable[[], Coroutine[Any, Any, Any]], *arguments: Any, **options: Any
) -> None:
    logger = get_logger("runner")
    is_responding = True

    async def work() -> None:
        nonlocal is_responding
        try:
            await workload()
        except (httpx.HTTPError, ValueError) as error:  # ValueError: the response is not that of Prefect
            if is_refusal(error):
                raise
            if is_responding:
                logger.warning("waiting for the Prefect server: %s", str(error).split("\n")[0] or repr(error))
            is_responding = False
        else:
            if not is_responding:
                logger.warning("the Prefect server responds again")
            is_responding = True

    await original(work, *arguments, **options)


async def _connect_again(original: Any, observer: Any) -> None:
    async def receive() -> None:
        with suppress(Exception):
            await original(observer)

    check = getattr(observer, CHECKS[type(observer).__name__])
    events = asyncio.ensure_future(receive())
    try:
        while True:
            await asyncio.sleep(observer.polling_interval)
            if events.done():
                events = asyncio.ensure_future(receive())
            with suppress(Exception):
                await check()  # an event of the time before a connection may be missing
    finally:
        events.cancel()


async def _start_without_events(original: Any, emitter: Any) -> Any:
    try:
        return await original(emitter)
    except Exception:  # noqa: BLE001  that of websockets, a package of Prefect
        vars(emitter)["_get_events_client"] = NullEventsClient
        return await original(emitter)


async def _send_quietly(_original: Any, worker: Any, items: list[dict[str, Any]]) -> None:
    with suppress(Exception):  # Prefect's own method catches all, and prints them
        await vars(worker)["_client"].create_logs(items)


async def _ping_without_the_global_generator(
    original: Any, connection: Any, data: str | bytes | None = None
) -> Any:
    return await original(connection, os.urandom(PING_BYTES) if data is None else data)


def _draw_interval_from_the_system(
    _original: Any, average_interval: float, lower: float = 0, upper: float = 1
) -> float:
    drawn = random.SystemRandom().uniform(lower, upper)
    return -math.log(max(1 - drawn, 1e-10)) * average_interval


def _skip_useless_drain(original: Any, service: Any, *arguments: Any, **options: Any) -> Any:
    state = vars(service)
    is_reset = state["_stopped"] and state["_done_event"] is None
    return False if is_reset or has_given_up() else original(service, *arguments, **options)


SUPPORTED = ">=3.8.8,<3.10"
PATCHES: tuple[Patch, ...] = (
    Patch(
        "prefect.flow_engine:maintain_concurrency_lease",
        "Prefect ends a run if its concurrency slot cannot be renewed, and has no setting to let it continue",
        "(lease_id, lease_duration, raise_on_lease_renewal_failure=False, suppress_warnings=False)",
        SUPPORTED,
        _continue_without_lease,
    ),
    Patch(
        "prefect.flow_engine:propose_state_sync",
        "Prefect ends a run with an error if its final state cannot be reported",
        "(client, state, flow_run_id, force=False)",
        SUPPORTED,
        _note_unsent_end,
    ),
    Patch(
        "prefect.client.orchestration._flow_runs.client:FlowRunClient.create_flow_run",
        "Prefect creates a flow run without an idempotency key, so a repeated request creates another",
        "(self, flow, name=None, parameters=None, context=None, tags=None, parent_task_run_id=None, "
        "state=None, work_pool_name=None, work_queue_name=None, job_variables=None)",
        SUPPORTED,
        _create_flow_run_once,
    ),
    Patch(
        "prefect._internal.control_listener:commit_control_intent_and_ack",
        "Prefect accepts a cancellation only while its own handler of SIGTERM is installed",
        "(commit_intent, clear_intent, send_ack, trigger_cancel=None)",
        SUPPORTED,
        _commit_while_deferred,
    ),
    *(
        Patch(
            f"{module}:critical_service_loop",
            "Prefect's runner exits, or receives no cancellation any more, after three failed polls",
            "(workload, interval, memory=10, consecutive=3, backoff=1, printer=<built-in function print>, "
            "run_once=False, jitter_range=None)",
            SUPPORTED,
            _outlive_outages,
        )
        for module in ("prefect.runner._scheduled_run_poller", "prefect._internal.observers")
    ),
    *(
        Patch(
            f"prefect._internal.observers:{observer}._consume_events",
            "Prefect's runner receives no cancellation after the server has closed the connection",
            "(self)",
            SUPPORTED,
            _connect_again,
        )
        for observer in CHECKS
    ),
    Patch(
        "prefect.runner._event_emitter:EventEmitter.__aenter__",
        "Prefect's runner does not start if the server sends no HTTP when it connects to send events",
        "(self)",
        SUPPORTED,
        _start_without_events,
    ),
    Patch(
        "prefect.logging.handlers:APILogWorker._handle_batch",
        "Prefect prints an error for each batch of logs that the server does not accept",
        "(self, items)",
        SUPPORTED,
        _send_quietly,
    ),
    Patch(
        "prefect._internal.concurrency.services:_QueueServiceBase.drain",
        "Prefect's services fail at the exit of a forked process, such as a worker of a DataLoader",
        "(self, at_exit=False)",
        SUPPORTED,
        _skip_useless_drain,
    ),
    Patch(
        "prefect.utilities.math:poisson_interval",
        "Prefect draws the time before a request is repeated from Python's generator, which training may use",
        "(average_interval, lower=0, upper=1)",
        SUPPORTED,
        _draw_interval_from_the_system,
    ),
    Patch(
        "websockets.asyncio.connection:Connection.ping",
        "a thread of Prefect would draw from the generator of Python that a model or its data may use",
        "(self, data=None)",
        ">=15,<17",
        _ping_without_the_global_generator,
    ),
)


def apply() -> None:
    """Replace the names in `PATCHES` in this process. Raises the error of `apply_patches`."""
    apply_patches(PATCHES)
