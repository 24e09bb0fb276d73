"""Deployments: the effect of their runs on the workspace, their artifacts, and their final states.

The model waits while a file exists, so that a test can act during a run. Each test waits for a state.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_servers import Api, Proxy
from ruamel.yaml import YAML
from waiting import LIMIT_SECONDS, wait_until

from pipeline.flows import deployment
from pipeline.flows.experiments import check_remotes
from pipeline.flows.serving import Plan, _build_deployment
from pipeline.project.collision import ROOT
from pipeline.project.yaml_files import read_yaml
from stages.contracts.errors import ParamsError, StageError

MODEL = """
import os, select, signal, socket
from pathlib import Path
from torch import nn
from stages.models.steps import ClassificationStep

ROOT = Path(os.environ.get("LEARNER_PROJECT") or os.environ.get("DVC_ROOT") or ".").resolve()

class Waiting(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        if (ROOT / "hold").exists() and self.steps == 20:
            arrived, wakeup = socket.socketpair()
            wakeup.setblocking(False)
            before = signal.set_wakeup_fd(wakeup.fileno())
            (ROOT / "held").touch()
            while (ROOT / "hold").exists():
                if select.select([arrived], [], [], 0.02)[0] and arrived.recv(99):
                    (ROOT / "signaled").touch()
            signal.set_wakeup_fd(before)
        return super().train_step(batch)
"""


class Served:
    """A process of `learner serve` in a project whose model waits."""

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
        wait_until(lambda: "serving learner/" in self.output, lambda: self.output, self.process)

    @property
    def output(self):
        """The text that the process has printed."""
        return (self.folder / "../serve.log").read_text()

    def hold(self):
        """Let the next run wait in its training, until `release`."""
        for name in ("held", "signaled"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "hold").touch()

    def wait_until_held(self):
        """Wait until a run waits in its training."""
        wait_until((self.folder / "held").exists, lambda: self.output)

    def wait_until_signaled(self):
        """Wait until the run in progress has received a signal."""
        wait_until((self.folder / "signaled").exists, lambda: self.output)

    def release(self):
        """Let the run that waits continue."""
        (self.folder / "hold").unlink(missing_ok=True)

    def end(self):
        """Stop `learner serve` with SIGTERM and return its exit code."""
        self.release()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_SECONDS)


def use_waiting_model(project):
    """Set the model that waits in *project* and return the project; git ignores the files that control it."""
    (project.folder / "waiting.py").write_text(MODEL)
    (project.folder / ".git/info/exclude").write_text("hold\nheld\nsignaled\n")
    project.use_model("waiting:Waiting")
    project.add_deps()
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "A model that waits")
    return project


@pytest.fixture
def serve(project, server):
    """Yield a function that starts `learner serve` in the project, and end its processes after the test."""
    started = []

    def start(*arguments, address=server, **environment):
        if not started:
            use_waiting_model(project)
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
    """A deployment in a workspace, after a run that a command met."""

    def __init__(self, project, address):
        self.project = project
        self.served = Served(project, address, "--workspace", "--name", "daily")
        self.api = self.served.api
        self.served.hold()
        self.first = self.api.start("daily")
        self.served.wait_until_held()
        self.command_while_first_runs = project.call("run")
        self.served.release()
        self.final_state = self.api.wait(self.first)
        self.status = project.dvc("status").ok()
        self.model = (project.folder / "artifacts/checkpoint/model-2.mpk.gz").read_bytes()


@pytest.fixture(scope="module")
def daily(checked_out, server, tmp_path_factory):
    """The deployment that the tests of runs in the workspace share; no test depends on another."""
    project = checked_out(tmp_path_factory.mktemp("daily") / "project")
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    made = Daily(use_waiting_model(project), server)
    yield made
    made.served.end()


@pytest.mark.parametrize(("cancels", "strategy"), [(False, "ENQUEUE"), (True, "CANCEL_NEW")])
def test_deployment_has_one_slot(cancels, strategy, project, server, monkeypatch):
    monkeypatch.chdir(project.folder)
    plan = Plan(f"slot-{strategy}", cancels=cancels)

    with temporary_settings({PREFECT_API_URL: server}):
        _build_deployment(plan, plan.schedule(), {}).apply()

    deployment = Api(server).deployment(plan.name)
    assert deployment["global_concurrency_limit"]["limit"] == 1
    assert deployment["concurrency_options"]["collision_strategy"] == strategy


def test_run_of_a_deployment_completes(daily):
    assert daily.final_state == "Completed"


@pytest.mark.long  # test_deployment_has_one_slot; test_recorded_runs.py: cached stages; test_run_page.py
def test_second_run_of_a_deployment_waits_for_the_first_and_is_compared_with_it(daily):
    daily.served.hold()
    overrides = ["fit.num_epochs=3"]
    first = daily.api.start("daily", overrides=overrides)
    daily.served.wait_until_held()
    second = daily.api.start("daily", overrides=overrides)
    assert daily.api.wait(second, "AwaitingConcurrencySlot") == "AwaitingConcurrencySlot"
    daily.served.release()

    assert [daily.api.wait(run) for run in (first, second)] == ["Completed", "Completed"]
    assert daily.api.tasks(second, 5) == [(name, "Cached") for name in STAGES]
    assert "up to date" in daily.project.ok("dvc", "status")
    compared = daily.api.artifacts(second)["daily-comparison"]
    name = daily.api.get(f"flow_runs/{first}")["name"]
    assert compared["description"] == f"Compared with {name}, the previous run of this deployment"
    rows = json.loads(compared["data"])
    assert {"epoch", "valid.Accuracy"} <= {row["name"] for row in rows}
    assert {row["difference"] for row in rows} == {"+0"}


@pytest.mark.long  # engine/test_project_lock.py: a second command
def test_command_is_refused_while_a_run_uses_the_workspace(daily):
    assert daily.command_while_first_runs.code == 1
    assert "this project is in use by pid" in daily.command_while_first_runs.err


def test_each_stage_is_a_task_run(daily):
    assert daily.api.tasks(daily.first, 5) == [(name, "Completed") for name in STAGES]
    assert "up to date" in daily.status


@pytest.mark.long  # test_recorded_runs.py
def test_run_logs_its_epochs_and_its_summary(daily):
    assert daily.api.wait_for_log(daily.first, "epoch 2/2 | train: Accuracy")
    assert daily.api.wait_for_log(daily.first, "= Learner Summary =")


@pytest.mark.long  # test_recorded_runs.py
def test_run_has_artifacts_for_progress_summary_and_curves(daily):
    found = daily.api.artifacts(daily.first)

    assert found["fit-progress"]["data"] == 100
    assert found["fit-progress"]["description"].startswith("epoch 2/2 | train: Accuracy")
    rows = json.loads(found["daily-summary"]["data"])
    assert [row["Metric"] for row in rows] == ["Accuracy", "Loss"] * 2
    assert found["daily-curves"]["data"].startswith("data:image/png;base64,iVBOR")


@pytest.mark.long  # test_recorded_runs.py
def test_checkpoint_artifact_names_the_model_in_the_cache(daily):
    found = daily.api.artifacts(daily.first)["daily-checkpoint"]["data"]

    path = Path(found.split("`")[3])
    assert path.is_relative_to(daily.project.folder)
    assert path.read_bytes() == daily.model
    assert "file://" not in found  # which a browser does not open from a page of a server


@pytest.mark.long  # test_recorded_runs.py
def test_run_is_named_by_its_params(daily):
    assert daily.api.get(f"flow_runs/{daily.first}")["name"] == "waiting:Waiting, adam, 2 epochs"


@pytest.mark.long  # test_run_page.py
def test_first_run_of_the_deployment_is_compared_with_none(daily):
    compared = daily.api.artifacts(daily.first)["daily-comparison"]

    assert compared["description"] == "No previous run of this deployment has a record"


@pytest.mark.long  # engine/test_signals.py sends a signal to a recorded run
def test_cancelled_run_ends_as_cancelled_and_leaves_the_workspace_unchanged(daily):
    before = daily.project.files(*WORKSPACE)
    daily.served.hold()
    cancelled = daily.api.start("daily", overrides=["fit.num_epochs=9", "fit.batch_size=16"])
    daily.served.wait_until_held()

    daily.api.cancel(cancelled)
    daily.served.wait_until_signaled()
    daily.served.release()

    assert daily.api.wait(cancelled, "Cancelled", "Completed") == "Cancelled"
    assert "Crashed" not in daily.api.history(cancelled)
    after = daily.project.files(*WORKSPACE)
    fit = [fit_record(files.pop("dvc.lock")) for files in (before, after)]
    assert after == before
    assert fit[0] == fit[1]
    assert (daily.project.folder / ".dvc/tmp/rwlock").read_text() == "{}"


def fit_record(lock):
    """Return the entry of `fit` in the text of a dvc.lock."""
    return YAML(typ="safe").load(lock)["stages"]["fit"]


@pytest.mark.parametrize("folder", [ROOT, None], ids=["checkout", "project of its own"])
def test_processes_of_a_scheduled_run_search_no_project_and_find_this_package(folder, tmp_path, monkeypatch):
    """An experiment has copies of the modules of its project."""
    project = folder or tmp_path
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/one", str(project), str(ROOT)]))

    deployment._leave_search_path()

    kept = ["/one", *([] if project == ROOT else [str(ROOT)])]
    assert os.environ["PYTHONPATH"] == os.pathsep.join(kept)


@pytest.mark.long
def test_scheduled_runs_are_experiments_that_leave_the_workspace_unchanged(serve, project, tmp_path):
    """The second run of an interval collides with the first, and is cancelled; the first is pushed.

    When `learner serve` is stopped, it pauses the schedule and exits with the code of the signal.
    """
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
    assert "SIGTERM: the schedule is paused" in served.output
    assert api.deployment("often")["paused"]
    assert project.ok("git", "status", "--short") == ""
    assert project.files("params.yaml", "dvc.yaml", "waiting.py", ".dvc/config") == before
    assert not (project.folder / "dvc.lock").exists()
    assert first["name"] == "waiting:Waiting, adam, 2 epochs"
    name = f"often-waiting-waiting-adam-2-epochs-{first['id'][-6:]}"
    assert name in project.ok("dvc", "exp", "list", "--name-only").splitlines()
    stages = ["create-artifact-dir", "load-data", "build-learner", "fit"]
    assert sorted(api.tasks(first["id"], 4)) == sorted((stage, "Completed") for stage in stages)
    assert api.wait_for_log(first["id"], "epoch 2/2 | train: Accuracy")
    assert name in project.ok("git", "ls-remote", "origin")
    assert len(list((tmp_path / "dvc").rglob("*"))) > 10
    assert name in api.artifacts(first["id"])["often-checkpoint"]["data"]


@pytest.mark.long
def test_run_completes_and_warns_if_its_server_is_killed(project, private_server):
    use_waiting_model(project)
    (project.folder / "hold").touch()
    running = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run"],
        cwd=project.folder,
        env=project.environment | {"PREFECT_API_URL": private_server.address, "LEARNER_GOODBYE_SECONDS": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((project.folder / "held").exists, process=running)

    private_server.process.kill()
    (project.folder / "hold").unlink()
    output = running.communicate(timeout=LIMIT_SECONDS)[0]

    assert running.returncode == 0
    assert "save-model: ran" in output
    assert (
        output.count(f"the Prefect server at {private_server.address} does not respond: waiting up to 3 s")
        == 1
    )
    assert "up to date" in project.ok("dvc", "status")


@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    ["--workspace", pytest.param("--experiment", marks=pytest.mark.long)],
    ids=["workspace", "experiment"],
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

    assert again.api.history(killed)[-1] == "Crashed"
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
    served.wait_until_signaled()
    served.release()

    assert served.api.wait(orphan) == "Crashed"
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert project.files("params.yaml") == before
    assert "in epoch 2" in project.ok("dvc", "repro")


@pytest.mark.long
def test_learner_run_reports_a_killed_run_as_crashed(project, server):
    use_waiting_model(project)
    (project.folder / "hold").touch()
    environment = project.environment | {"PREFECT_API_URL": server}
    command = [sys.executable, "-m", "pipeline", "run"]
    running = subprocess.Popen(command, cwd=project.folder, env=environment)
    wait_until((project.folder / "held").exists)
    [note] = (project.folder / ".runs/flow-runs").glob("*.json")
    running.kill()
    running.wait()
    (project.folder / "hold").unlink()

    project.ok(*command, PREFECT_API_URL=server)

    assert Api(server).history(note.stem)[-1] == "Crashed"
    assert not list(note.parent.iterdir())


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


def test_serve_is_refused_if_no_server_is_configured(project):
    refused = project.call("serve", "--cron", "0 3 * * *")

    assert refused.code == 2
    assert "no Prefect server is configured" in refused.err


def test_push_is_refused_if_there_is_no_remote(project, monkeypatch):
    monkeypatch.chdir(project.folder)

    with pytest.raises(StageError, match="`dvc remote add"):
        check_remotes(experiment=False)


@pytest.mark.long
def test_timeout_saves_and_the_next_run_resumes(serve, project):
    for mode in ("--workspace", "--experiment"):
        served = serve(mode, "--name", f"timed{mode}", "-S", f"fit.seed={len(mode)}")
        before = project.files("params.yaml", "dvc.yaml")
        served.hold()
        timed = served.api.start(f"timed{mode}", timeout_seconds=60)
        served.wait_until_held()
        served.wait_until_signaled()
        served.release()
        assert served.api.wait(timed) == "TimedOut"
        message = served.api.get(f"flow_runs/{timed}")["state"]["message"]
        assert message.startswith("timed out after 60 s (timeout_seconds): ")
        assert project.files("params.yaml", "dvc.yaml") == before

        again = served.api.start(f"timed{mode}")
        assert served.api.wait(again) == "Completed"
        assert served.api.wait_for_log(again, "resuming run")
        assert served.end() == 143


@pytest.mark.long
def test_experiment_after_a_cancelled_one_resumes(serve, project):
    served = serve("--name", "apart")
    served.hold()
    cancelled = served.api.start("apart")
    served.wait_until_held()

    served.api.cancel(cancelled)
    served.wait_until_signaled()
    served.release()

    assert served.api.wait(cancelled, "Cancelled", "Completed") == "Cancelled"
    assert project.ok("git", "status", "--short") == ""
    assert project.ok("dvc", "exp", "list", "--name-only") == ""
    again = served.api.start("apart")
    assert served.api.wait(again) == "Completed"
    assert served.api.wait_for_log(again, "resuming run")


@pytest.mark.long
def test_served_experiment_completes_and_exits_if_its_server_is_killed(serve, project, private_server):
    served = serve("--name", "alone", address=private_server.address, LEARNER_GOODBYE_SECONDS="3")
    served.hold()
    run = served.api.start("alone")
    served.wait_until_held()

    private_server.process.kill()
    served.release()

    wait_until(
        lambda: "became unreachable, so it has no final state of" in served.output, lambda: served.output
    )
    [name] = project.ok("dvc", "exp", "list", "--name-only").splitlines()
    assert name.endswith(run[-6:])
    assert project.ok("git", "status", "--short") == ""


@pytest.mark.long  # test_server_outage.py: the loops of the runner
@pytest.mark.parametrize("fault", ["drop", "500"])
def test_run_that_is_cancelled_during_an_outage_ends_as_cancelled_and_frees_its_slot(serve, server, fault):
    with Proxy(server) as proxy:
        served = serve("--workspace", "--name", f"outage-{fault}", address=proxy.address)
        api = Api(server)
        served.hold()
        cancelled = api.start(f"outage-{fault}")
        served.wait_until_held()
        proxy.fail(fault)
        api.cancel(cancelled)
        wait_until(lambda: "waiting for the Prefect server" in served.output, lambda: served.output)
        proxy.recover()
        served.wait_until_signaled()
        served.release()

        assert api.wait(cancelled, "Cancelled", "Completed") == "Cancelled"
        assert api.wait(api.start(f"outage-{fault}")) == "Completed"
        assert "the Prefect server responds again" in served.output
        assert "Traceback" not in served.output
        assert served.end() == 143


@pytest.mark.long
def test_deployment_is_created_again_on_an_emptied_server(serve, server, private_server):
    with Proxy(server) as proxy:
        served = serve("--workspace", "--name", "emptied", address=proxy.address)

        proxy.fail("drop")
        proxy.recover(private_server.address)

        wait_until(lambda: "created learner/emptied again" in served.output, lambda: served.output)
        api = Api(private_server.address)
        assert api.wait(api.start("emptied")) == "Completed"
        assert served.end() == 143
        assert api.deployment("emptied")["paused"]


@pytest.mark.long  # test_server_outage.py: the last of two services
def test_schedule_continues_while_one_of_two_services_is_restarted(serve):
    first, second = serve("--name", "rolling"), serve("--name", "rolling")

    assert first.end() == 143
    assert not first.api.deployment("rolling")["paused"]
    assert "the schedule continues in another process" in first.output
    assert second.end() == 143
    assert first.api.deployment("rolling")["paused"]


@pytest.mark.long
def test_prefect_yaml_deploys_for_a_worker(project, server):
    use_waiting_model(project)
    api = Api(server)
    project.ok("prefect", "work-pool", "create", "--type", "process", "learner", PREFECT_API_URL=server)
    project.ok("prefect", "--no-prompt", "deploy", "--all", PREFECT_API_URL=server)
    parameters = ("--param", 'overrides=["fit.num_epochs=1"]', "--param", 'targets=["fit"]')
    project.ok("prefect", "deployment", "run", "learner/process", *parameters, PREFECT_API_URL=server)
    run = api.runs("process")[0]["id"]

    worker = ("prefect", "worker", "start", "--pool", "learner", "--run-once")
    project.ok(*worker, PREFECT_API_URL=server)

    assert api.wait(run) == "Completed"
    assert api.deployment("process")["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert len(project.ok("dvc", "exp", "list", "--name-only").splitlines()) == 1


POOL = """
deployments:
  - name: pool
    entrypoint: pipeline.flows.deployment.learner
    work_pool: {{name: pool}}
    pull:
      - prefect.deployments.steps.git_clone:
          repository: {repository}
    parameters: {{experiment: true, push: true}}
"""


@pytest.mark.long  # tests/pipeline/project/test_git.py: a shallow clone
def test_workers_on_two_machines_push_their_experiments_and_resume_from_those_of_the_other(
    project, server, tmp_path
):
    """Each worker clones the repository into a temporary folder, which has only its last commit."""
    (tmp_path / "dvc").mkdir()
    project.ok("git", "init", "-q", "--bare", str(tmp_path / "git"))
    project.ok("git", "remote", "add", "origin", f"file://{tmp_path}/git")
    project.ok("dvc", "remote", "add", "--default", "there", str(tmp_path / "dvc"))
    (project.folder / "prefect.yaml").write_text(POOL.format(repository=f"file://{tmp_path}/git"))
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "A pool")
    project.ok("git", "push", "-q", "origin", "HEAD")
    project.ok("prefect", "work-pool", "create", "--type", "process", "pool", PREFECT_API_URL=server)
    project.ok("prefect", "--no-prompt", "deploy", "--all", PREFECT_API_URL=server)
    api, runs = Api(server), []
    checkpoint, epochs = [], 1
    for machine in ("one", "other"):
        overrides = [f"fit.num_epochs={epochs}", *checkpoint]
        runs.append(api.start("pool", overrides=overrides, targets=["fit"]))
        worker = ("prefect", "worker", "start", "--pool", "pool", "--run-once")
        project.ok(*worker, PREFECT_API_URL=server, PREFECT_HOME=str(tmp_path / machine))
        assert api.wait(runs[-1]) == "Completed", "\n".join(api.logs(runs[-1])[-30:])
        experiments = project.ok("git", "ls-remote", "origin", "refs/exps/*").splitlines()
        [experiment] = [line.split()[0] for line in experiments if line.endswith(runs[-1][-6:])]
        checkpoint, epochs = [f"+build_learner.checkpoint={{rev: {experiment}, epoch: 1}}"], 2

    assert api.wait_for_log(runs[0], "is a temporary folder")
    assert api.wait_for_log(runs[1], "epoch 2/2 | train: Accuracy")
    assert not any(line.startswith("epoch 1/2") for line in api.logs(runs[1]))
    assert project.ok("dvc", "exp", "list", "--name-only") == ""
