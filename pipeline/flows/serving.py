"""A deployment that this process makes, and whose runs it starts: what `learner serve` does."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast
from uuid import UUID

import httpx
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule
from prefect.settings import PREFECT_API_URL
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from pipeline.flows import prefect_api
from pipeline.flows.artifacts import API_ERRORS
from pipeline.flows.deployment import SERVER, scheduled_flow
from pipeline.flows.push import check_remotes
from pipeline.flows.run_registry import report_abandoned_submissions, report_killed_runs
from pipeline.flows.server_outage import exit_if_unreachable, outage_seconds
from pipeline.flows.targets import select_stages
from pipeline.params_edit import overridden
from stages.contracts.errors import ParamsError, RunInterruptedError, StageError

Poll = Callable[..., Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Plan:
    """When a deployment runs, and what the second of two runs does."""

    name: str
    cron: str | None = None
    interval: float | None = None
    """Seconds."""
    timezone: str = "UTC"
    cancels: bool = False
    """A run that comes while another is at work is cancelled; otherwise it waits."""

    def schedule(self) -> Schedule | None:
        """As Prefect has it; None where runs are only started by hand. Raises `ParamsError`."""
        if self.cron and self.interval:
            raise ParamsError("--cron and --interval exclude each other: a deployment has one schedule")
        if self.interval:
            return Interval(self.interval)
        if self.cron is None:
            return None
        try:
            CronSchedule(cron=self.cron, timezone=self.timezone)
        except ValidationError as error:
            told = "; ".join(each["msg"] for each in error.errors())
            raise ParamsError(f"--cron {self.cron!r} --timezone {self.timezone}: {told}") from error
        return Cron(self.cron, timezone=self.timezone)

    def limit(self) -> ConcurrencyLimitConfig:
        """One run at a time."""
        strategies = ConcurrencyLimitStrategy
        strategy = strategies.CANCEL_NEW if self.cancels else strategies.ENQUEUE
        return ConcurrencyLimitConfig(limit=1, collision_strategy=strategy)


def serve_deployment(plan: Plan, parameters: Mapping[str, Any]) -> None:
    """Make the deployment, and start its runs until a signal ends this; runs at work are cancelled, and save.

    Its schedule pauses then. Raises `ParamsError` for what no run could be made of, `StageError` where there
    is no server to serve for, and `RunInterruptedError` at the end.
    """
    if not prefect_api.is_configured():
        raise ParamsError(
            "no Prefect server is configured, and a schedule needs one: `prefect server start` starts it, "
            "and `prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api` names it"
        )
    overridden(parameters["overrides"])
    select_stages(parameters["targets"])
    if parameters["push"]:
        check_remotes(experiment=parameters["experiment"])
    schedule = plan.schedule()
    made = scheduled_flow.to_deployment(
        name=plan.name,
        schedule=schedule,
        concurrency_limit=plan.limit(),
        parameters=dict(parameters),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    runner = _Runner(name=plan.name, pause_on_shutdown=True)
    try:
        deployment = cast(UUID, runner.add_deployment(cast(RunnerDeployment, made)))
    except API_ERRORS as error:
        raise StageError(
            f"the Prefect server at {PREFECT_API_URL.value()} does not answer: {error}"
        ) from error
    report_killed_runs()
    report_abandoned_submissions(deployment)
    sys.stdout.write(
        f"serves learner/{plan.name}: `prefect deployment run learner/{plan.name}` starts a run now\n"
    )
    sys.stdout.flush()
    os.environ[SERVER] = str(os.getpid())
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    asyncio.run(runner.serve())


def _patient(poll: Poll) -> Poll:
    """*poll*, without the errors of a server that does not answer: the next time it may."""

    async def poll_if_it_answers(*given: Any, **named: Any) -> None:
        with suppress(httpx.TransportError):
            await poll(*given, **named)

    return poll_if_it_answers


class _Runner(Runner):
    """Prefect's, which on a signal waits until the runs at work have saved, and says that it was one.

    Prefect's own handler leaves them behind: it begins to stop them, and does not wait.
    """

    _signal: int | None = None

    async def __aenter__(self) -> Self:
        """Ready to start runs, and to outlive the server: Prefect's own gives up after minutes without one.

        With that it would end the runs at work.
        """
        await super().__aenter__()
        poller = self._scheduled_run_poller
        patient = _patient(poller._get_and_submit_flow_runs)  # noqa: SLF001
        poller._get_and_submit_flow_runs = patient  # type: ignore[method-assign]  # noqa: SLF001
        return self

    async def serve(self) -> None:
        """Start runs until a signal comes. Raises `RunInterruptedError` then."""
        self._loop_of_runs = asyncio.get_running_loop()
        signal.signal(signal.SIGINT, self.handle_sigterm)
        await self.start()
        if self._signal:
            raise self._interrupted(self._signal)

    def handle_sigterm(self, number: int = signal.SIGTERM, *_: Any) -> None:
        """Cancel the runs at work, and leave; a second SIGINT does not wait for them."""
        if self._signal is None:
            self._signal = number
            self._loop_of_runs.call_soon_threadsafe(self._stop_soon)
        elif number == signal.SIGINT:
            raise self._interrupted(number)

    def _stop_soon(self) -> None:
        exit_if_unreachable(threading.Event(), outage_seconds())
        self._stopping = asyncio.ensure_future(self.astop())

    @staticmethod
    def _interrupted(number: int) -> RunInterruptedError:
        name = signal.Signals(number).name
        return RunInterruptedError(
            f"{name}: the schedule is paused; a run that was at work is cancelled, and saved", number
        )
