"""Runs and deployments whose server goes away, fails and returns, behind a proxy."""

import asyncio
import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import anyio
import httpx
import pytest
from prefect._internal import observers
from prefect.runner._event_emitter import EventEmitter
from prefect.runner._process_manager import ProcessHandle
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed
from prefect_servers import FAULTS, Api, Proxy, running_server
from waiting import LIMIT_SECONDS, wait_until

from pipeline.engine.lock import project_lock
from pipeline.flows import prefect_patches, run_registry, serving
from pipeline.flows.artifacts import short_timeout_client
from pipeline.flows.flow import learner, run_from_command_line
from pipeline.flows.prefect_api import URL, run_stage_of_dvc
from pipeline.flows.run_registry import drop_missed_runs, end_tasks, register_service, report_killed_runs
from pipeline.flows.server_outage import wait_for_server
from pipeline.flows.serving import Plan, _build_deployment, _check_owner, _Runner
from stages.contracts.errors import ParamsError, RunInterruptedError
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


def test_run_waits_for_its_server_after_one_warning(proxy, monkeypatch):
    monkeypatch.setenv("LEARNER_GOODBYE_SECONDS", str(LIMIT_SECONDS))
    warnings = []
    proxy.fail("500", 3)

    with temporary_settings({PREFECT_API_URL: proxy.address}):
        assert wait_for_server(warnings.append)
        assert wait_for_server(warnings.append)

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
@pytest.mark.parametrize("fault", ["drop", "500", "silent"])
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
    finished, private_server, private_database, tmp_path
):
    with Proxy(private_server.address) as proxy:
        run = EndingRun(finished, proxy, tmp_path / "log")

        proxy.fail("drop")
        private_server.process.kill()
        private_server.process.wait()
        run.release()
        with running_server(tmp_path / "server", private_database) as restarted:
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


def test_runner_starts_although_the_server_sends_garbage_instead_of_accepting_events(proxy):
    prefect_patches.apply()
    proxy.fail("garbage")

    async def start():
        async with EventEmitter(runner_name="nightly", client=None) as emitter:
            return emitter

    with temporary_settings({PREFECT_API_URL: proxy.address}):
        asyncio.run(start())

    assert proxy.faults > 0


def test_check_of_each_observer_exists():
    for name, check in prefect_patches.CHECKS.items():
        assert callable(getattr(getattr(observers, name), check))


PHASES = {"probed": 1, "created": 4, "begun": 8, "stages": 12, "page": 20}
"""The number of requests before a fault."""
PAIRS = [(fault, phase) for fault in FAULTS for phase in PHASES if fault != "delay" or phase == "page"]


@pytest.fixture
def workspace(project, proxy, monkeypatch):
    """A project in the current folder, and the proxy in front of the server that records its runs."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("LEARNER_GOODBYE_SECONDS", "0.1")
    with temporary_settings({PREFECT_API_URL: proxy.address}):
        yield project


def test_run_that_the_server_does_not_let_begin_is_one_warning(workspace, proxy, capsys):
    proxy.fail("page", after=3)

    with project_lock(), run_from_command_line(print) as has_begun:
        learner(experiment=False, targets=["create-artifact-dir"])

    assert not has_begun.is_set()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: the Prefect server at {proxy.address} does not respond as it should (")


def test_lost_response_to_the_creation_of_a_run_creates_no_second_one(workspace, server, proxy):
    before = ids_of_runs(Api(server))
    proxy.fail("truncate", 1, path="/flow_runs/")

    with project_lock(), run_from_command_line(lambda *_: None):
        learner(experiment=False, targets=["create-artifact-dir"])

    assert proxy.faults == 1
    assert [Api(server).state(run) for run in ids_of_runs(Api(server)) - before] == ["Completed"]


@pytest.mark.long  # the test before
def test_run_whose_creation_has_no_response_is_ended_by_the_next_one(project, server, proxy):
    api = Api(server)
    before = ids_of_runs(api)

    proxy.fail("truncate", path="/flow_runs/")
    first = project.call("run", "create-artifact-dir", PREFECT_API_URL=proxy.address)
    proxy.recover()
    project.call("run", "create-artifact-dir", PREFECT_API_URL=proxy.address).ok()

    assert "so this run is not recorded there" in first.err
    assert sorted(map(api.state, ids_of_runs(api) - before)) == ["Cancelled", "Completed"]
    assert notes_of(project) == []


def ids_of_runs(api):
    """Return the ids of the flow runs that no deployment has created."""
    return {
        run["id"]
        for run in api.post("flow_runs/filter", {"flow_runs": {"deployment_id": {"is_null_": True}}})
    }


def test_stages_of_dvc_that_the_server_does_not_let_begin_are_one_warning(
    workspace, proxy, monkeypatch, capsys
):
    monkeypatch.setenv(URL, proxy.address)
    proxy.fail("page", after=1)

    for _ in range(2):
        run_stage_of_dvc("create-artifact-dir", os.getpid())

    assert (workspace.folder / "artifacts/config.json").exists()
    [warning] = capsys.readouterr().err.splitlines()
    assert "stopped responding, so this run is not recorded there" in warning


def test_run_completes_if_its_server_goes_away_and_a_later_one_reports_it(workspace, server, proxy, caplog):
    with project_lock(), run_from_command_line(lambda *_: proxy.fail("page")):
        state = learner(experiment=False, targets=["create-artifact-dir"], return_state=True)

    assert state.is_completed()
    assert sum("does not respond: waiting up to 0.1 s" in message for message in caplog.messages) == 1
    [run] = notes_of(workspace)
    assert Api(server).state(run) == "Running"
    proxy.recover()
    report_killed_runs()
    assert Api(server).state(run) == "Running"  # its process has not ended


@pytest.mark.long  # the tests before
@pytest.mark.parametrize(("fault", "phase"), PAIRS)
def test_run_continues_without_a_record_after_a_warning_and_the_next_one_reports_it(
    finished, server, proxy, fault, phase
):
    before = finished.files("dvc.lock", "artifacts", ".dvc/cache")
    proxy.fail(fault, after=PHASES[phase])

    run = finished.call("run", PREFECT_API_URL=proxy.address, LEARNER_GOODBYE_SECONDS="1")

    assert run.code == 0, run.text
    assert run.text.splitlines().count("save-model: unchanged") == 1
    # a server that cuts its responses passes the probe, so the page and the end have a warning each
    most = {"delay": 0, "truncate": 2}.get(fault, 1)
    assert (fault != "delay") <= run.text.lower().count("warning") <= most, run.text
    assert "Traceback" not in run.text
    assert finished.files("dvc.lock", "artifacts", ".dvc/cache") == before
    assert not list((finished.folder / ".runs").glob("**/*.part"))

    proxy.recover()
    noted = {note: json.loads(note.read_text()) for note in list_notes(finished)}
    finished.call("run", PREFECT_API_URL=proxy.address).ok()
    assert notes_of(finished) == []
    api = Api(server)
    for note, content in noted.items():
        runs = runs_of_key(api, content["key"]) if "key" in content else [note.stem]
        assert all(api.has_ended(run) for run in runs)


def list_notes(project):
    """Return the notes of the flow runs that *project* has not reported."""
    return list((project.folder / ".runs/flow-runs").glob("*.json"))


def notes_of(project):
    """Return the ids of these flow runs, and the keys of those whose response has not arrived."""
    return [note.stem for note in list_notes(project)]


def runs_of_key(api, key):
    """Return the ids of the flow runs that the server has created for the idempotency *key*."""
    return [
        run["id"] for run in api.post("flow_runs/filter", {"flow_runs": {"idempotency_key": {"any_": [key]}}})
    ]


def create_run(api, state, **options):
    """Create a flow run in *state* and return its id; the server never makes a scheduled one late."""
    flow = api.post("flows/", {"name": "learner"})["id"]
    described = {"type": state, "state_details": {"scheduled_time": "2100-01-01T00:00:00Z"}}
    return api.post("flow_runs/", {"flow_id": flow, "state": described, **options})["id"]


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
    ("before", "end", "after"),
    [
        ("RUNNING", "Completed", "Completed"),
        ("CANCELLING", "Completed", "Completed"),
        ("CRASHED", "Completed", "Completed"),
        ("FAILED", "Completed", "Failed"),
        ("RUNNING", "Failed", "Failed"),
        ("PENDING", "Cancelled", "Cancelled"),
        ("RUNNING", None, "Crashed"),
        ("CANCELLING", None, "Cancelled"),
        ("SCHEDULED", None, "Scheduled"),
        ("PAUSED", None, "Paused"),
    ],
)
def test_run_that_ended_without_a_report_is_reported_later(server, folder, before, end, after):
    api = Api(server)
    run = create_run(api, before)
    notes = folder / ".runs/flow-runs"
    notes.mkdir(parents=True)
    noted = {"end": {"type": end.upper(), "name": end, "message": "It has ended"}} if end else {}
    (notes / f"{run}.json").write_text(json.dumps({"api": server, **noted}))

    with temporary_settings({PREFECT_API_URL: server}):
        wait_until(lambda: report_killed_runs() or not list(notes.iterdir()))

    assert api.state(run) == after


def create_deployment(api, name, **options):
    """Create a deployment and return its id."""
    flow = api.post("flows/", {"name": "learner"})["id"]
    return api.post("deployments/", {"name": name, "flow_id": flow, **options})["id"]


def test_run_that_no_process_has_started_is_reported_after_an_error_of_the_server(server, proxy, monkeypatch):
    monkeypatch.setattr(run_registry, "SUBMISSION_SECONDS", 0.1)
    api = Api(server)
    deployment = create_deployment(api, "abandoned")
    runs = [api.start("abandoned") for _ in range(2)]
    for run in runs:
        api.post(f"flow_runs/{run}/set_state", {"state": {"type": "PENDING"}})
    with temporary_settings({PREFECT_API_URL: server}):
        pending = run_registry._read_runs(UUID(deployment), {"type": {"any_": ["PENDING"]}})
    api.delete(f"flow_runs/{pending[0].id}")
    proxy.fail("500", 1)

    with temporary_settings({PREFECT_API_URL: proxy.address}):
        run_registry._report_unchanged(pending)

    assert proxy.faults == 1
    assert api.state(pending[1].id) == "Crashed"


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


def test_runs_that_wait_for_the_one_in_progress_are_one_warning(server, capsys):
    api = Api(server)
    with temporary_settings({PREFECT_API_URL: server}):
        runner = _Runner(_build_deployment(Plan("queue"), None, {}))
        runner.add_deployment(runner.deployment)
        for _ in range(2):
            run = api.start("queue")
            state = {"type": "SCHEDULED", "name": "AwaitingConcurrencySlot"}
            api.post(f"flow_runs/{run}/set_state", {"state": state, "force": True})
            asyncio.run(runner._warn_of_waiting_runs())
        asyncio.run(runner._warn_of_waiting_runs())

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 2 runs of learner/queue wait for the one in progress")


def test_run_that_the_server_has_lost_ends_with_its_runner_without_a_traceback(server, folder, caplog):
    async def stop(runner):
        async with runner:
            process = await anyio.open_process(["sleep", "600"], start_new_session=True)
            await runner._process_manager.add(uuid4(), ProcessHandle(process))
            await runner.cancel_all()
        return await process.wait()

    with temporary_settings({PREFECT_API_URL: server}), register_service("lost") as service:
        runner = _Runner(_build_deployment(Plan("lost"), None, {}))
        runner.service = service
        assert asyncio.run(stop(runner)) == -signal.SIGTERM

    assert "ERROR" not in [record.levelname for record in caplog.records]


def test_signal_before_the_runner_has_started_pauses_the_schedule(server, folder, monkeypatch):
    monkeypatch.setattr(serving, "exit_if_unreachable", lambda: None)  # a thread that would exit this process
    monkeypatch.setattr(serving, "print_line", lambda _: signal.raise_signal(signal.SIGTERM))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with temporary_settings({PREFECT_API_URL: server}), register_service("early") as service:
            runner = _Runner(_build_deployment(Plan("early"), None, {}))
            runner.service = service
            runner.add_deployment(runner.deployment)
            with pytest.raises(RunInterruptedError, match="SIGTERM: the schedule is paused"):
                asyncio.run(runner.serve())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    assert Api(server).deployment("early")["paused"]


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
