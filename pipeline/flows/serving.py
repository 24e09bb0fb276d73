"""The work of `learner serve`: create a deployment, and start its runs until a signal arrives."""

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from pipeline.engine.reproduce import select_stages
from pipeline.flows import prefect_api, prefect_patches
from pipeline.flows.artifacts import API_ERRORS
from pipeline.flows.deployment import ENTRYPOINT, SERVER_VARIABLE
from pipeline.flows.experiments import check_remotes
from pipeline.flows.flow import learner
from pipeline.flows.run_registry import report_abandoned_submissions, report_killed_runs
from pipeline.flows.server_outage import exit_if_unreachable, outage_seconds
from pipeline.project.collision import ROOT
from pipeline.project.params_edit import ALLOW_CODE, check_overrides
from stages.contracts.errors import ParamsError, RunInterruptedError, StageError
from stages.contracts.printing import print_line

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


def serve_deployment(plan: Plan, parameters: Mapping[str, Any], *, allow_code: bool = False) -> None:
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
    runner = _Runner(name=plan.name, pause_on_shutdown=True)
    try:
        deployment = cast(UUID, runner.add_deployment(_build_deployment(plan, schedule, parameters)))
    except API_ERRORS as error:
        raise StageError(
            f"the Prefect server at {prefect_api.describe_url()} does not respond: {error}. Start the server"
        ) from error
    report_killed_runs()
    report_abandoned_submissions(deployment)
    print_line(f"serving learner/{plan.name}. To start a run now: prefect deployment run learner/{plan.name}")
    os.environ[SERVER_VARIABLE] = str(os.getpid())
    os.environ[ENTRYPOINT_VARIABLE] = ENTRYPOINT  # otherwise the API names what the processes of runs execute
    search_path = (os.environ.get("PYTHONPATH"), str(ROOT))  # not the project, which has modules of any name
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, search_path))
    asyncio.run(runner.serve())


def _build_deployment(
    plan: Plan, schedule: Schedule | None, parameters: Mapping[str, Any]
) -> RunnerDeployment:
    deployment = learner.to_deployment(
        name=plan.name,
        schedule=schedule,
        concurrency_limit=plan.limit(),
        parameters=dict(parameters),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    built = cast(RunnerDeployment, deployment)
    built.entrypoint = ENTRYPOINT  # its module prepares the process before the run begins
    return built


class _Runner(Runner):
    """A runner that, on a signal, waits until the runs in progress have saved, and reports the signal.

    The signal handler of Prefect's runner stops the runs and does not wait for them.
    """

    _signal: int | None = None

    async def serve(self) -> None:
        """Start runs until a signal arrives, and then raise `RunInterruptedError`."""
        self._loop_of_runs = asyncio.get_running_loop()
        signal.signal(signal.SIGINT, self.handle_sigterm)
        await self.start()
        if self._signal:
            raise self._build_error(self._signal)

    def handle_sigterm(self, number: int = signal.SIGTERM, *_: Any) -> None:
        """Cancel the runs in progress and stop; a second SIGINT does not wait for them."""
        if self._signal is None:
            self._signal = number
            self._loop_of_runs.call_soon_threadsafe(self._begin_to_stop)
        elif number == signal.SIGINT:
            raise self._build_error(number)

    def _begin_to_stop(self) -> None:
        exit_if_unreachable(threading.Event(), outage_seconds())
        self._stopping = asyncio.ensure_future(self.astop())

    @staticmethod
    def _build_error(number: int) -> RunInterruptedError:
        name = signal.Signals(number).name
        return RunInterruptedError(
            f"{name}: the schedule is paused, and a run in progress was cancelled after it had saved", number
        )
