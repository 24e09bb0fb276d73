"""The work of `learner serve`: create a deployment, and start its runs until a signal arrives."""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, DeploymentStatus
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule
from prefect.settings import PREFECT_CLIENT_RETRY_EXTRA_CODES
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from pipeline.engine.reproduce import select_stages
from pipeline.flows import prefect_api, prefect_patches
from pipeline.flows.artifacts import API_ERRORS, short_timeout_client
from pipeline.flows.deployment import ENTRYPOINT
from pipeline.flows.experiments import check_remotes
from pipeline.flows.flow import SERVER_VARIABLE, learner
from pipeline.flows.run_registry import (
    Service,
    count_waiting_runs,
    drop_missed_runs,
    register_service,
    report_abandoned_submissions,
    report_killed_runs,
)
from pipeline.flows.server_outage import RETRIED_CODES, exit_if_unreachable
from pipeline.project.collision import ROOT
from pipeline.project.params_edit import ALLOW_CODE, check_overrides
from stages.contracts.errors import ParamsError, RunInterruptedError, StageError
from stages.contracts.printing import print_error, print_line

OWNER = "folder="
"""Beginning of the tag of a deployment that names its host and folder."""
START_SECONDS = 0.01
"""The time between two looks at whether the runner has started, before which it cannot be stopped."""
ENTRYPOINT_VARIABLE = "PREFECT__FLOW_ENTRYPOINT"
"""Environment variable of Prefect with the flow of a run, instead of the entry point of its deployment."""


@dataclass(frozen=True)
class Plan:
    """The schedule of a deployment, and its rule for two runs at a time."""

    name: str
    cron: str | None = None
    interval: float | None = None
    """Seconds."""
    timezone: str = "UTC"
    cancels: bool = False
    """If true, a run is cancelled if another run is in progress. If false, it waits."""
    drops_missed: bool = True
    """If true, runs of the schedule that were missed while nothing served it are cancelled at the start."""

    def schedule(self) -> Schedule | None:
        """Return Prefect's schedule; None if runs are started manually only. Raises `ParamsError`."""
        if self.cron and self.interval:
            raise ParamsError(
                "--cron and --interval exclude each other, because a deployment has one schedule. Set one"
            )
        if self.interval:
            return Interval(self.interval)
        if self.cron is None:
            return None
        try:
            CronSchedule(cron=self.cron, timezone=self.timezone)
        except ValidationError as error:
            reason = "; ".join(detail["msg"] for detail in error.errors())
            raise ParamsError(f"--cron {self.cron!r} --timezone {self.timezone}: {reason}") from error
        return Cron(self.cron, timezone=self.timezone)

    def limit(self) -> ConcurrencyLimitConfig:
        """Return Prefect's concurrency limit for one run at a time."""
        strategies = ConcurrencyLimitStrategy
        strategy = strategies.CANCEL_NEW if self.cancels else strategies.ENQUEUE
        return ConcurrencyLimitConfig(limit=1, collision_strategy=strategy)


def serve_deployment(plan: Plan, parameters: Mapping[str, Any], *, allow_code: bool) -> None:
    """Create the deployment *plan*, and start its runs until a signal arrives.

    Overrides of its runs may name code and files that are not committed only with *allow_code*.
    On a signal, pause the schedule, cancel the run in progress and wait until it has saved. Raises
    `ParamsError` if no run with *parameters* can succeed, `StageError` if the server is unreachable, and
    `RunInterruptedError` at the end.
    """
    if not prefect_api.is_configured():
        raise ParamsError(
            "no Prefect server is configured, and a schedule needs one. Run `prefect server start`, and "
            "`prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api`"
        )
    if allow_code:
        os.environ[ALLOW_CODE] = "1"
    check_overrides(parameters["overrides"])
    select_stages(parameters["targets"])
    if parameters["push"]:
        check_remotes(experiment=parameters["experiment"])
    schedule = plan.schedule()
    prefect_patches.apply()
    runner = _Runner(_build_deployment(plan, schedule, parameters))
    with register_service(plan.name) as service:
        try:
            _check_owner(plan.name)
            deployment = cast(UUID, runner.add_deployment(runner.deployment))
            report_killed_runs()
            report_abandoned_submissions(deployment)
            if plan.drops_missed and service.starts_first():
                drop_missed_runs(deployment)
        except API_ERRORS as error:
            url = prefect_api.describe_url()
            raise StageError(
                f"the Prefect server at {url} does not respond: {error}. Start the server"
            ) from error
        _prepare_environment()
        runner.service = service
        asyncio.run(runner.serve())


def _prepare_environment() -> None:
    """Set the variables of the processes of runs."""
    os.environ[SERVER_VARIABLE] = str(os.getpid())
    os.environ[ENTRYPOINT_VARIABLE] = ENTRYPOINT  # otherwise the API names what the processes of runs execute
    search_path = (os.environ.get("PYTHONPATH"), str(ROOT))  # not the project, which has modules of any name
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, search_path))
    os.environ.setdefault(PREFECT_CLIENT_RETRY_EXTRA_CODES.name, RETRIED_CODES)


def _build_deployment(
    plan: Plan, schedule: Schedule | None, parameters: Mapping[str, Any]
) -> RunnerDeployment:
    deployment = learner.to_deployment(
        name=plan.name,
        schedule=schedule,
        concurrency_limit=plan.limit(),
        parameters=dict(parameters),
        tags=[_describe_owner()],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    built = cast(RunnerDeployment, deployment)
    built.entrypoint = ENTRYPOINT  # its module prepares the process before the run begins
    return built


def _describe_owner() -> str:
    """Return the tag of a deployment that names the folder whose service runs it."""
    return f"{OWNER}{socket.gethostname()}:{Path.cwd()}"


def _check_owner(name: str) -> None:
    """Raise `ParamsError` if a service of another folder serves the deployment *name*."""
    with short_timeout_client() as client:
        try:
            deployment = client.read_deployment_by_name(f"learner/{name}")
        except ObjectNotFound:
            return
    owners = [tag for tag in deployment.tags if tag.startswith(OWNER)]
    if owners and _describe_owner() not in owners and deployment.status == DeploymentStatus.READY:
        raise ParamsError(
            f"the deployment learner/{name} is served from {owners[0].removeprefix(OWNER)}. Set --name to "
            "another name, or stop that service and repeat this command after a minute"
        )


class _Runner(Runner):
    """A runner of *deployment* that, on a signal, waits until the runs in progress have saved.

    It reports the signal then. The signal handler of Prefect's runner does not wait for the runs. Only the
    last of several services of a deployment pauses its schedule.
    """

    service: Service
    _signal: int | None = None
    _is_paused = False
    _has_warned = False

    def __init__(self, deployment: RunnerDeployment) -> None:
        super().__init__(name=deployment.name, pause_on_shutdown=True)
        self.deployment = deployment

    async def serve(self) -> None:
        """Start runs until a signal arrives, and then raise `RunInterruptedError`."""
        self._loop_of_runs = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_sigterm)
        name = f"learner/{self.name}"
        print_line(f"serving {name}. To start a run now: prefect deployment run {name}")
        upkeep = asyncio.create_task(self._maintain_server())
        await self.start()
        upkeep.cancel()
        if self._signal:
            raise self._build_error(self._signal)

    async def _maintain_server(self) -> None:
        """Report the runs that have ended unreported, and create the deployment if the server lost it."""
        while True:
            await asyncio.sleep(self.query_seconds)
            with suppress(*API_ERRORS):
                await asyncio.to_thread(report_killed_runs)
                await self._warn_of_waiting_runs()
                try:
                    await self._client.read_deployment_by_name(f"learner/{self.name}")
                except ObjectNotFound:
                    await self.aadd_deployment(self.deployment)
                    print_line(f"created learner/{self.name} again, which the server had lost")

    async def _warn_of_waiting_runs(self) -> None:
        """Print one warning if runs are scheduled faster than they end."""
        for deployment in self._deployment_registry.get_deployment_ids():
            count = await asyncio.to_thread(count_waiting_runs, deployment)
            if count > 1 and not self._has_warned:
                self._has_warned = True
                print_error(
                    f"warning: {count} runs of learner/{self.name} wait for the one in progress: the "
                    "interval may be shorter than a run. Set a longer one, or --on-collision cancel"
                )

    async def _cancel_run(self, *arguments: Any, **options: Any) -> None:
        """Cancel a run when the server responds: an error of the request would end the runner."""
        while True:
            try:
                with suppress(ObjectNotFound):  # a user has deleted the run
                    await super()._cancel_run(*arguments, **options)
                break
            except httpx.HTTPError:
                await asyncio.sleep(self.query_seconds)

    async def cancel_all(self) -> None:
        """Cancel the runs in progress. The process of one that the server has lost ends with the runner."""
        for flow_run_id in self._process_manager.flow_run_ids():
            with suppress(*API_ERRORS):
                flow_run = await self._client.read_flow_run(flow_run_id)
                await self._cancellation_manager.cancel(flow_run, state_msg="Runner is shutting down.")

    async def _pause_schedules(self) -> None:
        """Pause the schedule, unless another process serves the deployment."""
        if self.service.ends_last():
            self._is_paused = True
            for deployment in self._deployment_registry.get_deployment_ids():
                with suppress(*API_ERRORS):  # the server has lost it
                    await self._client.pause_deployment(deployment)

    def handle_sigterm(self, number: int = signal.SIGTERM, *_: Any) -> None:
        """Cancel the runs in progress and stop; a second SIGINT does not wait for them."""
        if self._signal is None:
            self._signal = number
            self._loop_of_runs.call_soon_threadsafe(self._begin_to_stop)
        elif number == signal.SIGINT:
            raise self._build_error(number)

    def _begin_to_stop(self) -> None:
        exit_if_unreachable()
        self._stopping = asyncio.ensure_future(self._stop_once_started())

    async def _stop_once_started(self) -> None:
        while not self.started:
            await asyncio.sleep(START_SECONDS)
        await self.astop()

    def _build_error(self, number: int) -> RunInterruptedError:
        name = signal.Signals(number).name
        schedule = "is paused" if self._is_paused else "continues in another process"
        return RunInterruptedError(
            f"{name}: the schedule {schedule}, and a run in progress was cancelled after it had saved", number
        )
