"""Runs and deployments whose server goes away, fails and returns, behind a proxy."""

import asyncio
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from prefect._internal import observers
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed
from prefect_servers import Api, Proxy, running_server
from waiting import LIMIT_SECONDS, wait_until

from pipeline.flows import prefect_patches
from pipeline.flows.artifacts import Artifacts, short_timeout_client
from pipeline.flows.run_registry import drop_missed_runs, end_tasks, register_service, report_killed_runs
from pipeline.flows.server_outage import wait_for_server
from pipeline.flows.serving import _check_owner
from stages.contracts.errors import ParamsError
from stages.system.file_lock import hold_lock

RUN = """
import sys
from contextlib import suppress
from pathlib import Path
from pipeline.engine.lock import project_lock
from pipeline.flows.flow import learner, run_from_command_line
from prefect.context import FlowRunContext

def report(name, _):
    if name == sys.argv[1]:
        Path("run").write_text(str(FlowRunContext.get().flow_run.id))
        while not Path("release").exists():
            pass

with project_lock(), run_from_command_line(report):
    learner(experiment=False)
"""


@pytest.fixture
def proxy(server):
    """Yield a proxy in front of the server."""
    with Proxy(server) as proxy:
        yield proxy


def test_run_waits_for_its_server_after_one_warning(proxy):
    warnings = []
    proxy.fail("500", 3)

    with temporary_settings({PREFECT_API_URL: proxy.address}):
        wait_for_server(LIMIT_SECONDS, warnings.append)
        wait_for_server(0, warnings.append)

    assert proxy.faults == 3
    [warning] = warnings
    assert warning.startswith(f"the Prefect server at {proxy.address} does not respond: waiting up to ")


class EndingRun:
    """A `learner run` in *project* behind *proxy* that waits after its last stage, until `release`."""

    def __init__(self, project, proxy, log):
        (project.folder / "run_stages.py").write_text(RUN)
        self._folder, self._log = project.folder, log
        self.process = project.start_fork("run_stages", "save-model", log=log, PREFECT_API_URL=proxy.address)
        self.wait_until((project.folder / "run").exists)
        self.id = (project.folder / "run").read_text()

    def wait_until(self, is_so):
        """Wait until *is_so* returns a true value."""
        wait_until(is_so, self._log.read_text, self.process)

    def release(self):
        """Let the run continue, and wait until it has reported that the server does not respond."""
        (self._folder / "release").touch()
        self.wait_until(lambda: "does not respond" in self._log.read_text())

    def assert_completed(self, api):
        """Check that the run ends as Completed, with its page, its tasks and one warning."""
        assert self.process.wait(LIMIT_SECONDS) == 0, self._log.read_text()
        assert api.history(self.id)[-1] == "Completed"
        assert f"{self._folder.name}-summary" in api.artifacts(self.id)
        assert {state for _, state in api.tasks(self.id, 5)} == {"Cached"}
        assert self._log.read_text().count("WARNING") == 1
        assert "Traceback" not in self._log.read_text()


@pytest.mark.long  # the test before
@pytest.mark.parametrize("fault", ["drop", "500", "delay"])
def test_run_is_completed_with_its_page_although_its_server_was_away_at_its_end(
    finished, server, proxy, fault, tmp_path
):
    run = EndingRun(finished, proxy, tmp_path / "log")

    proxy.fail(fault)
    run.release()
    proxy.recover()

    run.assert_completed(Api(server))


@pytest.mark.long  # the test before
def test_run_is_completed_although_its_server_was_killed_and_started_again(
    finished, private_server, database, tmp_path
):
    with Proxy(private_server.address) as proxy:
        run = EndingRun(finished, proxy, tmp_path / "log")

        proxy.fail("drop")
        private_server.process.kill()
        private_server.process.wait()
        run.release()
        with running_server(tmp_path / "server", database, has_template=False) as restarted:
            proxy.recover(restarted.address)

            run.assert_completed(Api(restarted.address))


@pytest.mark.parametrize("fault", ["drop", "500"])
def test_loops_of_the_runner_continue_after_an_outage_with_two_messages(proxy, fault, caplog):
    prefect_patches.apply()
    proxy.fail(fault, 8)
    responses = []

    async def poll():
        async with httpx.AsyncClient() as client:
            responses.append((await client.get(f"{proxy.address}/health")).raise_for_status())
        if len(responses) == 2:
            raise StopAsyncIteration

    with caplog.at_level("WARNING", "prefect.runner"), pytest.raises(StopAsyncIteration):
        asyncio.run(observers.critical_service_loop(poll, interval=0.001, jitter_range=0.3))

    assert proxy.faults == 8
    first, second = caplog.messages
    assert (first[:31], second) == ("waiting for the Prefect server:", "the Prefect server responds again")


def test_loop_of_the_runner_ends_if_the_server_refuses_its_login(proxy):
    prefect_patches.apply()

    async def poll():
        async with httpx.AsyncClient() as client:
            (await client.get(f"{proxy.address}/missing")).raise_for_status()

    with pytest.raises(httpx.HTTPStatusError, match="404"):
        asyncio.run(observers.critical_service_loop(poll, interval=0.001))


def test_check_of_each_observer_exists():
    for name, check in prefect_patches.CHECKS.items():
        assert callable(getattr(getattr(observers, name), check))


def test_artifact_that_cannot_be_written_again_is_one_warning(proxy, caplog):
    proxy.fail("500")

    with temporary_settings({PREFECT_API_URL: proxy.address}):
        artifacts = Artifacts(None, None, logging.getLogger(__name__))
        assert [artifacts.create("markdown", key, "") for key in ("one", "one", "other")] == [None] * 3

    assert [message[:28] for message in caplog.messages] == [
        "the artifact one is not writ",
        "the artifact other is not wr",
    ]


def create_run(api, state, **options):
    """Create a flow run in *state* and return its id."""
    flow = api.post("flows/", {"name": "learner"})["id"]
    return api.post("flow_runs/", {"flow_id": flow, "state": {"type": state}, **options})["id"]


def test_cancellation_during_an_outage_is_received_after_it(server, proxy):
    prefect_patches.apply()
    api = Api(server)
    run = UUID(create_run(api, "RUNNING"))

    async def observe():
        received = asyncio.Queue()
        async with observers.FlowRunCancellingObserver(received.put_nowait, 0.01) as observer:
            observer._events_subscriber._reconnection_attempts = 0  # otherwise it tries for ten seconds
            observer.add_in_flight_flow_run_id(run)
            proxy.fail("drop")
            await asyncio.to_thread(api.cancel, run)
            await asyncio.to_thread(wait_until, lambda: proxy.faults > 5)
            proxy.recover()
            return await received.get()

    with temporary_settings({PREFECT_API_URL: proxy.address, PREFECT_CLIENT_MAX_RETRIES: 0}):
        assert asyncio.run(observe()) == run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, for the notes of runs and services."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("before", "is_completed", "after"),
    [
        ("RUNNING", True, "Completed"),
        ("CANCELLING", True, "Completed"),
        ("CRASHED", True, "Completed"),
        ("FAILED", True, "Failed"),
        ("RUNNING", False, "Crashed"),
        ("CANCELLING", False, "Cancelled"),
        ("SCHEDULED", False, "Scheduled"),
        ("PAUSED", False, "Paused"),
    ],
)
def test_run_that_ended_without_a_report_is_reported_later(server, folder, before, is_completed, after):
    api = Api(server)
    run = create_run(api, before)
    notes = folder / ".runs/flow-runs"
    notes.mkdir(parents=True)
    (notes / f"{run}.json").write_text(json.dumps({"api": server, "completed": is_completed}))

    with temporary_settings({PREFECT_API_URL: server}):
        report_killed_runs()

    assert api.state(run) == after
    assert not list(notes.iterdir())


def create_deployment(api, name, **options):
    """Create a deployment and return its id."""
    flow = api.post("flows/", {"name": "learner"})["id"]
    return api.post("deployments/", {"name": name, "flow_id": flow, **options})["id"]


def test_task_whose_end_the_server_has_not_received_gets_the_state_of_its_run(server):
    api = Api(server)
    run = create_run(api, "RUNNING")
    for name, state in (("fit", "RUNNING"), ("load-data", "FAILED")):
        task = {"flow_run_id": run, "task_key": name, "dynamic_key": "0", "name": name}
        api.post("task_runs/", task | {"state": {"type": state}})

    with temporary_settings({PREFECT_API_URL: server}), short_timeout_client() as client:
        end_tasks(client, UUID(run), Completed(message="The end"))

    states = {task["name"]: task["state"] for task in api.find("task_runs", run)}
    assert (states["fit"]["name"], states["fit"]["message"]) == ("Completed", "The end")
    assert states["load-data"]["name"] == "Failed"


def test_missed_runs_of_the_schedule_are_dropped_and_others_remain(server):
    """The server schedules the first runs when the deployment is created, and they are missed later."""
    api = Api(server)
    schedule = {"schedule": {"interval": 2, "anchor_date": "2026-01-01T00:00:00Z"}, "active": True}
    deployment = create_deployment(api, "missed", schedules=[schedule])
    manual = api.start("missed")
    wait_until(lambda: len(scheduled(api, "missed", "Scheduled", "Late")) > 2)
    try:
        with temporary_settings({PREFECT_API_URL: server}):
            drop_missed_runs(UUID(deployment))

        dropped = scheduled(api, "missed", "Cancelled")
    finally:
        api.delete(f"deployments/{deployment}")
    assert len(dropped) > 1
    assert manual not in [run["id"] for run in dropped]


def scheduled(api, name, *states):
    """Return the runs of deployment *name* in one of *states* whose time has passed."""
    now = datetime.now(UTC).isoformat()
    return [run for run in api.runs(name) if run["state_name"] in states and run["expected_start_time"] < now]


def test_only_the_last_service_of_a_deployment_pauses_its_schedule(folder):
    with register_service("nightly") as first, register_service("weekly"):
        with hold_lock(Path(".runs/flow-runs/serve-nightly-1.lock")):
            assert not first.ends_last()
        assert first.ends_last()


def test_deployment_that_is_served_from_another_folder_is_refused(server, folder):
    api = Api(server)
    deployment = create_deployment(api, "taken", tags=["folder=elsewhere:/project"])

    with temporary_settings({PREFECT_API_URL: server}):
        _check_owner("taken")  # nothing serves it
        api.post("deployments/get_scheduled_flow_runs", {"deployment_ids": [deployment]})
        wait_until(lambda: api.deployment("taken")["status"] == "READY")
        with pytest.raises(ParamsError, match="learner/taken is served from elsewhere:/project. Set --name"):
            _check_owner("taken")
        _check_owner("free")
