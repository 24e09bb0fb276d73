"""Runs of the flow, recorded by a server, in the process of a test if they start no threads."""

import logging
import os
import uuid
from pathlib import Path

import prefect.flow_engine
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_servers import Api
from templates import short
from waiting import wait_until

from pipeline.engine.lock import project_lock
from pipeline.engine.reproduce import select_stages
from pipeline.flows import prefect_patches
from pipeline.flows.flow import learner
from pipeline.flows.task_run import GPU_LIMIT, count_gpus, gpu_slots
from pipeline.project.versions import VERSIONS
from pipeline.project.yaml_files import read_yaml
from stages.contracts.errors import ParamsError, StageError

MODEL = """
from pathlib import Path
from torch import nn
from stages.models.steps import ClassificationStep

class FailingOnce(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        if self.steps == 20 and not Path("failed").exists():
            Path("failed").touch()
            raise RuntimeError("failed once")
        return super().train_step(batch)
"""
RUN_TWICE = """
from pipeline.flows.flow import learner

for overrides in (["fit.num_epochs=3", "fit.batch_size=32", "fit.seed=7"], ["fit.num_epochz=3"]):
    state = learner(experiment=False, targets=["fit"], overrides=overrides, return_state=True)
    print(state.name, state.state_details.flow_run_id)
"""
FIRST = "create-artifact-dir"


@pytest.fixture
def workspace(project, server, monkeypatch):
    """A project in the current folder, and the server that records its runs."""
    monkeypatch.chdir(project.folder)
    with temporary_settings({PREFECT_API_URL: server}):
        yield project


def run(**options):
    """Run the first stage in the workspace, and return the final state of the flow run."""
    return learner(experiment=False, targets=[FIRST], return_state=True, **options)


def test_run_that_exceeds_its_timeout_names_the_interrupted_stage(workspace):
    state = run(timeout_seconds=0.01)

    assert state.name == "TimedOut"
    assert f"timed out after 0.01 s (timeout_seconds): {FIRST} was interrupted" in state.message
    assert state.message.endswith("Run the deployment again with the same params to resume")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, home, server):
    """Return a project, and the final state and the id of a run that is retried and of an invalid run."""
    project = short(tmp_path_factory.mktemp("runs") / "project", home)
    (project.folder / "failing.py").write_text(MODEL)
    (project.folder / "run_twice.py").write_text(RUN_TWICE)
    project.use_model("failing:FailingOnce")
    project.add_deps()
    lines = project.fork("run_twice", PREFECT_API_URL=server).out.splitlines()
    return project, *(line.split() for line in lines[-2:])


def test_failed_fit_is_retried_and_resumes(runs, server):
    """The model fails at step 20, in the second of three epochs; params keep the overrides of the run."""
    project, (state, run), _ = runs
    api = Api(server)

    assert state == "Completed"
    assert api.wait_for_log(run, "RuntimeError: failed once")
    assert api.wait_for_log(run, "resuming run")
    tasks = api.find("task_runs", run)
    assert [task["run_count"] for task in tasks if task["name"].startswith("fit")] == [2]
    assert read_yaml(project.folder / "params.yaml")["fit"]["num_epochs"] == 3
    assert "fit" not in project.dvc("status", "fit").ok()


def test_invalid_override_fails_the_run_without_a_traceback(runs, server):
    _, _, (state, run) = runs

    assert state == "Failed"
    assert Api(server).wait_for_log(run, "-S fit.num_epochz=3: ")
    assert not any("Traceback" in line for line in Api(server).logs(run))


def test_training_holds_one_slot_for_each_gpu(workspace, server):
    workspace.edit("params.yaml", "device: auto", "device: cpu")
    api, logger = Api(server), logging.getLogger(__name__)

    def count_held():
        return api.get(f"v2/concurrency_limits/{GPU_LIMIT}")["active_slots"]

    with gpu_slots(logger, 2):
        pass  # the server has no such limit
    limit = api.post("v2/concurrency_limits/", {"name": GPU_LIMIT, "limit": 2})
    try:
        with gpu_slots(logger, count_gpus()):
            assert (count_gpus(), count_held()) == (0, 0)
        with gpu_slots(logger, 2):
            assert count_held() == 2
        assert count_held() == 0
        refused = pytest.raises(StageError, match="cannot acquire 3 slots of the concurrency limit 'gpu'")
        with refused, gpu_slots(logger, 3):
            pass
    finally:
        api.delete(f"v2/concurrency_limits/{limit['id']}")


def test_run_continues_without_its_concurrency_slot(server, caplog):
    prefect_patches.apply()

    with (
        temporary_settings({PREFECT_API_URL: server}),
        prefect.flow_engine.maintain_concurrency_lease(
            uuid.uuid4(), 300, raise_on_lease_renewal_failure=True
        ),
    ):
        wait_until(lambda: "slots are no longer reserved" in caplog.text)


def test_run_of_targets_without_fit_completes_in_a_workspace_without_results(project, server, monkeypatch):
    monkeypatch.chdir(project.folder)
    with temporary_settings({PREFECT_API_URL: server}):
        state = learner(experiment=False, targets=["load-data"], return_state=True)

    assert state.is_completed()
    assert (project.folder / "data/prepared").is_dir()
    assert not (project.folder / "artifacts/train").exists()


def test_run_is_named_after_its_overrides_logs_its_stages_and_pushes_their_outputs(
    workspace, server, tmp_path, caplog
):
    store = tmp_path / "store"
    (workspace.folder / ".dvc/config.local").write_text(
        f"[core]\nremote = store\n['remote \"store\"']\nurl = {store}\n"
    )

    state = run(push=True, overrides=["fit.num_epochs=3", "fit.batch_size=16"])

    assert state.is_completed()
    flow_run = Api(server).get(f"flow_runs/{state.state_details.flow_run_id}")
    assert flow_run["name"] == "num_epochs=3, batch_size=16"
    assert f"{FIRST}: ran" in caplog.messages
    assert "files pushed" in caplog.text
    assert list(store.rglob("*"))


def test_run_waits_for_the_workspace_no_longer_than_its_timeout(workspace):
    with project_lock():
        state = run(timeout_seconds=0.5)

    assert state.is_failed()
    with pytest.raises(StageError, match=f"in use by pid {os.getpid()}"):
        state.result()


def test_stages_that_targets_need_are_selected_in_order(project, monkeypatch):
    """A file that DVC tracks without a stage is in the graph too."""
    monkeypatch.chdir(project.folder)
    Path("notes.txt.dvc").write_text(
        "outs:\n- md5: d41d8cd98f00b204e9800998ecf8427e\n  size: 0\n  hash: md5\n  path: notes.txt\n"
    )

    assert select_stages([]) == list(VERSIONS)
    assert select_stages(["build-learner"]) == [FIRST, "load-data", "build-learner"]
    assert select_stages(["build-learner"], downstream=True) == ["build-learner", "fit", "save-model"]
    with pytest.raises(ParamsError, match="Did you mean 'fit'"):
        select_stages(["fitt"])
