"""Deployments: the effect of their runs on a workspace, their artifacts, and their ends.

The model waits while a file exists, so that a test can act during a run; every wait is for a state.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from waiting import LIMIT_SECONDS, wait_until

from pipeline.flows.flow import select_stages
from pipeline.flows.push import check_remotes
from pipeline.flows.serving import Plan
from pipeline.yaml_files import read_yaml
from stages.contracts.errors import ParamsError, StageError

ENDED = {"Completed", "Failed", "Crashed", "Cancelled", "TimedOut"}
MODEL = """
import os, select, signal, socket
from pathlib import Path
from torch import nn
from stages.models.steps import ClassificationStep

ROOT = (Path(os.environ.get("DVC_ROOT") or ".") / ".runs").resolve().parent

class Waiting(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        if (ROOT / "hold").exists() and self.steps == 50:
            arrived, wakeup = socket.socketpair()
            wakeup.setblocking(False)
            before = signal.set_wakeup_fd(wakeup.fileno())
            (ROOT / "held").touch()
            while (ROOT / "hold").exists():
                if select.select([arrived], [], [], 0.02)[0] and arrived.recv(99):
                    (ROOT / "signalled").touch()
            signal.set_wakeup_fd(before)
        if (ROOT / "fail").exists() and self.steps == 50:
            (ROOT / "fail").unlink()
            raise RuntimeError("bad luck")
        return super().train_step(batch)
"""


class Api:
    """The API of the Prefect server, from which the UI reads too."""

    def __init__(self, address):
        self.address = address

    def get(self, path):
        return self._ask(f"{self.address}/{path}")

    def post(self, path, body):
        request = urllib.request.Request(  # noqa: S310  loopback
            f"{self.address}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return self._ask(request)

    @staticmethod
    def _ask(request):
        """Send *request*, and again after HTTP 503, which a busy server on SQLite returns."""

        def answered():
            try:
                with urllib.request.urlopen(request) as answer:  # noqa: S310  loopback
                    return [answer.read()]
            except urllib.error.HTTPError as error:
                if error.code == 503:
                    return None
                raise AssertionError(error) from error

        [text] = wait_until(answered)
        return json.loads(text) if text else None

    def deployment(self, name):
        return self.get(f"deployments/name/learner/{name}")

    def start(self, name, **parameters):
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return self.post(f"deployments/{self.deployment(name)['id']}/create_flow_run", body)["id"]

    def cancel(self, run):
        self.post(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})

    def state(self, run):
        return self.get(f"flow_runs/{run}")["state_name"]

    def wait(self, run, *states):
        """Wait until *run* is in one of *states*, by default a final one, and return the state."""

        def reached():
            state = self.state(run)
            return state if state in (states or ENDED) else None

        return wait_until(reached, lambda: f"it is {self.state(run)}: {self.logs(run)}")

    def runs(self, name):
        wanted = {"deployments": {"id": {"any_": [self.deployment(name)["id"]]}}}
        return self.post("flow_runs/filter", wanted | {"sort": "EXPECTED_START_TIME_ASC"})

    def of(self, kind, run, **more):
        return self.post(f"{kind}/filter", {"flow_runs": {"id": {"any_": [run]}}} | more)

    def logs(self, run):
        wanted = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        return [each["message"] for each in self.post("logs/filter", wanted)]

    def logged(self, run, text):
        """Wait until a log line of *run* contains *text*; logs arrive some seconds late."""
        return wait_until(lambda: any(text in line for line in self.logs(run)), lambda: self.logs(run))

    def tasks(self, run, count):
        """Return the tasks of *run*, in order, once *count* have arrived through a queue."""

        def arrived():
            found = self.of("task_runs", run, sort="EXPECTED_START_TIME_ASC")
            has_ended = all(each["state_name"] in ENDED | {"Cached"} for each in found)
            return found if len(found) >= count and has_ended else None

        found = wait_until(arrived)
        return [(each["name"].rsplit("-", 1)[0], each["state_name"]) for each in found]

    def artifacts(self, run):
        return {each["key"]: each for each in self.of("artifacts", run) if each["key"]}


class Served:
    """A project whose model waits, and a process of `learner serve` in it."""

    def __init__(self, project, address, *arguments, **environment):
        self.project = project
        self.folder = project.folder
        self.api = Api(address)
        self.environment = {
            "PREFECT_API_URL": address,
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            **environment,
        }
        with (self.folder / "../serve.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "serve", "--interval", "86400", *arguments],
                cwd=self.folder,
                env=project.environment | self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: "serving learner/" in self.said, lambda: self.said, self.process)

    @property
    def said(self):
        return (self.folder / "../serve.log").read_text()

    def hold(self):
        for name in ("held", "signalled"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "hold").touch()

    def wait_until_held(self):
        wait_until((self.folder / "held").exists, lambda: self.said)

    def wait_until_signalled(self):
        """Wait until the run in progress has received a signal."""
        wait_until((self.folder / "signalled").exists, lambda: self.said)

    def release(self):
        (self.folder / "hold").unlink(missing_ok=True)

    def end(self):
        self.release()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_SECONDS)


def waiting(project):
    """Return *project* with the model that waits; git ignores the files that control it."""
    (project.folder / "waiting.py").write_text(MODEL)
    (project.folder / ".git/info/exclude").write_text("hold\nheld\nfail\nsignalled\n")
    project.edit("params.yaml", "    kind: cnn\n    dropout: 0.5", '    kind: "waiting:Waiting"')
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "A model that waits")
    return project


@pytest.fixture
def serve(project, server):
    """Start `learner serve` in the project, and end it after the test."""
    started = []

    def start(*arguments, address=server, **environment):
        if not started:
            waiting(project)
        started.append(Served(project, address, *arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end()
        with suppress(OSError):
            os.killpg(each.process.pid, signal.SIGKILL)


STAGES = ["create-artifact-dir", "load-data", "build-learner", "fit", "save-model"]
WORKSPACE = ("params.yaml", "dvc.lock", "artifacts/checkpoint", "artifacts/metrics.json")


class Daily:
    """A deployment in a workspace, after two runs of which the second waited for the first."""

    def __init__(self, project, address):
        self.project = project
        self.served = Served(project, address, "--workspace", "--name", "daily")
        self.api = self.served.api
        self.served.hold()
        self.first = self.api.start("daily")
        self.served.wait_until_held()
        self.second = self.api.start("daily")
        self.second_while_first_runs = self.api.wait(self.second, "AwaitingConcurrencySlot")
        self.command_while_first_runs = project.learner("run")
        self.served.release()
        self.ends = [self.api.wait(self.first), self.api.wait(self.second)]
        self.status = project.ok("dvc", "status")
        self.model = (project.folder / "artifacts/checkpoint/model-2.mpk.gz").read_bytes()


@pytest.fixture(scope="module")
def daily(checked_out, server, tmp_path_factory):
    """The deployment that the tests of runs in the workspace share; none of them depends on another."""
    project = checked_out(tmp_path_factory.mktemp("daily") / "project")
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    made = Daily(waiting(project), server)
    yield made
    made.served.end()


def test_second_run_of_a_deployment_waits_for_the_first(daily):
    assert daily.second_while_first_runs == "AwaitingConcurrencySlot"
    assert daily.ends == ["Completed", "Completed"]


def test_command_is_refused_while_a_run_uses_the_workspace(daily):
    assert daily.command_while_first_runs.code == 1
    assert "this project is in use by pid" in daily.command_while_first_runs.err


def test_each_stage_is_a_task_run_that_is_cached_if_it_is_up_to_date(daily):
    assert daily.api.tasks(daily.first, 5) == [(name, "Completed") for name in STAGES]
    assert daily.api.tasks(daily.second, 5) == [(name, "Cached") for name in STAGES]
    assert "up to date" in daily.status


def test_run_logs_its_epochs_and_its_summary(daily):
    assert daily.api.logged(daily.first, "epoch 2/2 | train: Accuracy")
    assert daily.api.logged(daily.first, "= Learner Summary =")


def test_run_has_artifacts_for_progress_summary_and_curves(daily):
    found = daily.api.artifacts(daily.first)

    assert found["fit-progress"]["data"] == 100
    assert found["fit-progress"]["description"].startswith("epoch 2/2 | train: Accuracy")
    rows = json.loads(found["daily-summary"]["data"])
    assert [row["Metric"] for row in rows] == ["Accuracy", "Loss"] * 2
    assert found["daily-curves"]["data"].startswith("data:image/png;base64,iVBOR")


def test_checkpoint_artifact_links_to_the_model_in_the_cache(daily):
    found = daily.api.artifacts(daily.first)["daily-checkpoint"]["data"]

    link = Path(found.split("file://")[1].split(")")[0])
    assert link.is_relative_to(daily.project.folder)
    assert link.read_bytes() == daily.model


def test_run_is_compared_with_the_previous_run_of_the_deployment(daily):
    first, second = (daily.api.artifacts(run)["daily-comparison"] for run in (daily.first, daily.second))

    name = daily.api.get(f"flow_runs/{daily.first}")["name"]
    assert first["description"] == "The first run of this deployment"
    assert second["description"] == f"Compared with {name}, the previous run of this deployment"
    rows = json.loads(second["data"])
    assert {"epoch", "valid.Accuracy"} <= {row["name"] for row in rows}
    assert {row["difference"] for row in rows} == {"+0"}


def test_cancelled_run_ends_as_cancelled_and_leaves_the_workspace_unchanged(daily):
    before = daily.project.files(*WORKSPACE)
    daily.served.hold()
    cancelled = daily.api.start("daily", overrides=["fit.num_epochs=9", "fit.batch_size=16"])
    daily.served.wait_until_held()

    daily.api.cancel(cancelled)
    daily.served.wait_until_signalled()
    daily.served.release()

    assert daily.api.wait(cancelled, "Cancelled", "Completed") == "Cancelled"
    assert "Crashed" not in history(daily.api, cancelled)
    after = daily.project.files(*WORKSPACE)
    fit = [fit_record(files.pop("dvc.lock")) for files in (before, after)]
    assert after == before
    assert fit[0] == fit[1]
    assert (daily.project.folder / ".dvc/tmp/rwlock").read_text() == "{}"


def fit_record(lock):
    return YAML(typ="safe").load(lock)["stages"]["fit"]


def test_failed_fit_is_retried_and_resumes(daily):
    """The model fails at step 50, in the second of three epochs; params stay as the run had set them."""
    (daily.project.folder / "fail").touch()

    retried = daily.api.start("daily", overrides=["fit.num_epochs=3", "fit.batch_size=32", "fit.seed=7"])

    assert daily.api.wait(retried) == "Completed"
    assert daily.api.logged(retried, "RuntimeError: bad luck")
    assert daily.api.logged(retried, "resuming run")
    fit = next(each for each in daily.api.of("task_runs", retried) if each["name"].startswith("fit"))
    assert fit["run_count"] == 2
    assert read_yaml(daily.project.folder / "params.yaml")["fit"]["num_epochs"] == 3
    assert "up to date" in daily.project.ok("dvc", "status")


def test_run_that_exceeds_its_timeout_ends_as_timed_out(daily):
    timed = daily.api.start("daily", timeout_seconds=0.05)

    assert daily.api.wait(timed) == "TimedOut"
    message = daily.api.get(f"flow_runs/{timed}")["state"]["message"]
    assert message.startswith(
        "timed out after 0.05 s (timeout_seconds): create-artifact-dir was interrupted."
    )
    assert message.endswith("Run the deployment again with the same params to resume")


def test_invalid_override_fails_the_run_without_a_traceback(daily):
    failed = daily.api.start("daily", overrides=["fit.num_epochz=3"])

    assert daily.api.wait(failed) == "Failed"
    assert daily.api.logged(failed, "-S fit.num_epochz=3: ")
    assert not any("Traceback" in line for line in daily.api.logs(failed))


def test_stopped_serve_pauses_the_schedule_and_exits_with_the_signal(serve):
    served = serve("--workspace", "--name", "paused")
    served.api.wait(served.api.start("paused", overrides=["fit.num_epochz=3"]))  # the runner has started

    assert served.end() == 143
    assert "SIGTERM: the schedule is paused" in served.said
    assert served.api.deployment("paused")["paused"]


def test_scheduled_runs_are_experiments_that_leave_the_workspace_unchanged(serve, project, tmp_path):
    """The second run of an interval collides with the first, and is cancelled; the first is pushed."""
    for remote, command in (("git", ["git", "init", "-q", "--bare"]), ("dvc", ["mkdir"])):
        project.ok(*command, str(tmp_path / remote))
    project.ok("git", "remote", "add", "origin", str(tmp_path / "git"))
    project.ok("dvc", "remote", "add", "--default", "there", str(tmp_path / "dvc"))
    served = serve("--name", "often", "--interval", "8", "--on-collision", "cancel", "--push", "fit")
    api = served.api
    before = project.files("params.yaml", "dvc.yaml", "waiting.py", ".dvc/config")
    served.hold()

    served.wait_until_held()
    first = next(each for each in api.runs("often") if each["state_name"] == "Running")
    second = next(each for each in api.runs("often") if each["state_name"] == "Scheduled")
    assert api.wait(second["id"]) == "Cancelled"
    served.release()
    assert api.wait(first["id"]) == "Completed"

    assert served.end() == 143
    assert project.ok("git", "status", "--short") == ""
    assert project.files("params.yaml", "dvc.yaml", "waiting.py", ".dvc/config") == before
    assert not (project.folder / "dvc.lock").exists()
    name = f"often-{first['name']}-{first['id'][-6:]}"
    assert name in project.ok("dvc", "exp", "list", "--name-only").splitlines()
    stages = ["create-artifact-dir", "load-data", "build-learner", "fit"]
    assert sorted(api.tasks(first["id"], 4)) == sorted((stage, "Completed") for stage in stages)
    assert api.logged(first["id"], "epoch 2/2 | train: Accuracy")
    assert name in project.ok("git", "ls-remote", "origin")
    assert len(list((tmp_path / "dvc").rglob("*"))) > 10
    assert name in api.artifacts(first["id"])["often-checkpoint"]["data"]


def test_run_completes_and_exits_if_its_server_is_killed(project, mortal_server):
    waiting(project)
    (project.folder / "hold").touch()
    running = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run"],
        cwd=project.folder,
        env=project.environment | {"PREFECT_API_URL": mortal_server.address, "LEARNER_GOODBYE_SECONDS": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((project.folder / "held").exists, process=running)

    mortal_server.process.kill()
    (project.folder / "hold").unlink()
    said = running.communicate(timeout=LIMIT_SECONDS)[0]

    assert running.returncode == 1
    assert "save-model: ran" in said
    assert said.splitlines()[-1].startswith(
        f"error: the Prefect server at {mortal_server.address} became unreachable"
    )
    assert "up to date" in project.ok("dvc", "status")


def history(api, run):
    """Return the names of the states of *run*, oldest first."""
    return [each["name"] for each in api.get(f"flow_run_states/?flow_run_id={run}")]


@pytest.mark.parametrize(
    "mode", ["--workspace", pytest.param("--experiment", marks=pytest.mark.long)], ids=["workspace", "apart"]
)
def test_params_and_slot_are_restored_after_serve_and_its_run_are_killed(serve, project, mode):
    served = serve(mode, "--name", f"killed{mode}")
    before = project.files("params.yaml")
    served.hold()
    killed = served.api.start(f"killed{mode}", overrides=["fit.num_epochs=9"])
    served.wait_until_held()
    os.killpg(served.process.pid, signal.SIGKILL)
    served.release()
    wait_until(lambda: project.files("params.yaml") == before)

    again = serve(mode, "--name", f"killed{mode}")

    assert history(again.api, killed)[-1] == "Crashed"
    assert again.api.wait(again.api.start(f"killed{mode}")) == "Completed"
    assert read_yaml(project.folder / "params.yaml")["fit"]["num_epochs"] == 2
    assert again.end() == 143


@pytest.mark.long
def test_run_saves_and_reports_its_end_if_only_serve_is_killed(serve, project):
    served = serve("--workspace", "--name", "orphan")
    before = project.files("params.yaml")
    served.hold()
    orphan = served.api.start("orphan", overrides=["fit.num_epochs=9"])
    served.wait_until_held()
    pid = int((project.folder / ".runs/lock").read_text().split()[0])

    served.process.kill()
    served.wait_until_signalled()
    served.release()

    assert served.api.wait(orphan) == "Crashed"
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert project.files("params.yaml") == before
    assert "in epoch 2" in project.ok("dvc", "repro")


@pytest.mark.long
def test_learner_run_reports_a_killed_run_as_crashed(project, server):
    waiting(project)
    (project.folder / "hold").touch()
    environment = project.environment | {"PREFECT_API_URL": server}
    command = [sys.executable, "-m", "pipeline", "run"]
    running = subprocess.Popen(command, cwd=project.folder, env=environment)
    wait_until((project.folder / "held").exists)
    [note] = (project.folder / ".runs/flow-runs").glob("*.json")
    running.kill()
    (project.folder / "hold").unlink()

    project.ok(*command, PREFECT_API_URL=server)

    assert history(Api(server), note.stem)[-1] == "Crashed"
    assert not list(note.parent.iterdir())


SLOTS = """
import logging, subprocess
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from pipeline.flows.gpu_limit import LIMIT_NAME, gpu_slots, count_gpus

client = get_client(sync_client=True)

def held():
    return client._client.get(f"/v2/concurrency_limits/{LIMIT_NAME}").json()["active_slots"]

with gpu_slots(logging.getLogger(), 2):
    pass  # a server without such a limit
subprocess.run(["prefect", "gcl", "create", "gpu", "--limit", "2"], check=True, stdout=subprocess.DEVNULL)
with gpu_slots(logging.getLogger()):
    print("used", count_gpus(), "held", held())
with gpu_slots(logging.getLogger(), 2):
    print("held", held())
print("held", held())
with gpu_slots(logging.getLogger(), 3):
    pass
"""


def test_training_holds_one_slot_for_each_gpu(project, server):
    project.edit("params.yaml", "device: auto", "device: cpu")

    done = project.run(sys.executable, "-c", SLOTS, PREFECT_API_URL=server)

    assert done.out.splitlines() == ["used 0 held 0", "held 2", "held 0"]
    assert "StageError: cannot acquire 3 slots of the concurrency limit 'gpu'" in done.err


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan("n", cron="0 25 * * *"), "--cron '0 25 * * *'"),
        (Plan("n", cron="0 3 * * *", timezone="Mars/Olympus"), "Mars/Olympus"),
        (Plan("n", cron="0 3 * * *", interval=60.0), "exclude each other"),
    ],
)
def test_invalid_schedule_is_refused(plan, message):
    with pytest.raises(ParamsError, match=message.replace("*", r"\*")):
        plan.schedule()


def test_serve_refuses_a_deployment_whose_runs_cannot_succeed(project, monkeypatch):
    refused = project.learner("serve", "--cron", "0 3 * * *")
    assert refused.code == 2
    assert "no Prefect server is configured" in refused.err
    monkeypatch.chdir(project.folder)

    with pytest.raises(StageError, match="`dvc remote add"):
        check_remotes(experiment=False)
    with pytest.raises(ParamsError, match="Did you mean 'fit'"):
        select_stages(["fitt"])
    assert select_stages(["build-learner"]) == ["create-artifact-dir", "load-data", "build-learner"]


LEASE = """
import time, uuid, prefect.flow_engine
from pipeline.flows import prefect_patches

prefect_patches.apply()

with prefect.flow_engine.maintain_concurrency_lease(uuid.uuid4(), 300, raise_on_lease_renewal_failure=True):
    time.sleep(10)
    print("continued")
"""


@pytest.mark.long
def test_run_continues_without_its_concurrency_slot(project, server):
    done = project.run(sys.executable, "-c", LEASE, PREFECT_API_URL=server)

    assert "slots are no longer reserved" in done.err
    assert done.out == "continued\n"


@pytest.mark.long
def test_timeout_saves_and_the_next_run_resumes(serve, project):
    for mode in ("--workspace", "--experiment"):
        served = serve(mode, "--name", f"timed{mode}", "-S", f"fit.seed={len(mode)}")
        before = project.files("params.yaml", "dvc.yaml")
        served.hold()
        timed = served.api.start(f"timed{mode}", timeout_seconds=60)
        served.wait_until_held()
        served.wait_until_signalled()
        served.release()
        assert served.api.wait(timed) == "TimedOut"
        message = served.api.get(f"flow_runs/{timed}")["state"]["message"]
        assert message.startswith("timed out after 60 s (timeout_seconds): ")
        assert project.files("params.yaml", "dvc.yaml") == before

        again = served.api.start(f"timed{mode}")
        assert served.api.wait(again) == "Completed"
        assert served.api.logged(again, "resuming run")
        assert served.end() == 143


@pytest.mark.long
def test_experiment_after_a_cancelled_one_resumes(serve, project):
    served = serve("--name", "apart")
    served.hold()
    cancelled = served.api.start("apart")
    served.wait_until_held()

    served.api.cancel(cancelled)
    served.wait_until_signalled()
    served.release()

    assert served.api.wait(cancelled, "Cancelled", "Completed") == "Cancelled"
    assert project.ok("git", "status", "--short") == ""
    assert project.ok("dvc", "exp", "list", "--name-only") == ""
    again = served.api.start("apart")
    assert served.api.wait(again) == "Completed"
    assert served.api.logged(again, "resuming run")


@pytest.mark.long
def test_served_experiment_completes_and_exits_if_its_server_is_killed(serve, project, mortal_server):
    served = serve("--name", "alone", address=mortal_server.address, LEARNER_GOODBYE_SECONDS="3")
    served.hold()
    run = served.api.start("alone")
    served.wait_until_held()

    mortal_server.process.kill()
    served.release()

    wait_until(lambda: "became unreachable, so it has no final state of" in served.said, lambda: served.said)
    [name] = project.ok("dvc", "exp", "list", "--name-only").splitlines()
    assert name.endswith(run[-6:])
    assert project.ok("git", "status", "--short") == ""


@pytest.mark.long
def test_prefect_yaml_deploys_for_a_worker(project, server):
    waiting(project)
    api = Api(server)
    project.ok("prefect", "work-pool", "create", "--type", "process", "learner", PREFECT_API_URL=server)
    project.ok("prefect", "--no-prompt", "deploy", "--all", PREFECT_API_URL=server)
    given = ("--param", 'overrides=["fit.num_epochs=1"]', "--param", 'targets=["fit"]')
    project.ok("prefect", "deployment", "run", "learner/process", *given, PREFECT_API_URL=server)
    run = api.runs("process")[0]["id"]

    worker = ("prefect", "worker", "start", "--pool", "learner", "--run-once")
    project.ok(*worker, PREFECT_API_URL=server)

    assert api.wait(run) == "Completed"
    assert api.deployment("process")["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert len(project.ok("dvc", "exp", "list", "--name-only").splitlines()) == 1
