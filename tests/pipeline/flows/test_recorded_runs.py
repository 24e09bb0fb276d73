"""What `learner run` and `dvc repro` record if a Prefect API is configured."""

import json

import pytest
from prefect_servers import ENDED, Api
from waiting import wait_until

from pipeline.project.versions import VERSIONS

STAGES = ["create-artifact-dir", "load-data", "build-learner", "fit", "save-model"]


@pytest.fixture
def api(server):
    return Api(server)


def latest_runs(api, count=1):
    """Return the last *count* flow runs that have started, oldest first: other tests use the server too."""
    started = {"flow_runs": {"start_time": {"is_null_": False}}}
    return api.post("flow_runs/filter", started | {"sort": "START_TIME_DESC", "limit": count})[::-1]


def read_tasks(api, run):
    """Return the task runs of *run*, in their order, after all five have ended."""

    def arrived():
        tasks = api.find("task_runs", run["id"])
        has_ended = all(task["state_name"] in ENDED | {"Cached"} for task in tasks)
        return tasks if len(tasks) == len(STAGES) and has_ended else None

    return sorted(wait_until(arrived), key=lambda task: task["start_time"])


def test_api_records_the_flow_and_its_five_tasks_with_versions_and_states(finished, project, server, api):
    project.call("run", PREFECT_API_URL=server).ok()

    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")
    [run] = latest_runs(api)
    assert run["state_name"] == "Completed"
    tasks = read_tasks(api, run)
    assert [task["name"].rsplit("-", 1)[0] for task in tasks] == STAGES
    assert [task["task_version"] for task in tasks] == [VERSIONS[name] for name in STAGES]
    assert [task["state_name"] for task in tasks] == ["Completed"] * 5


def test_api_records_unchanged_stages_as_cached_and_a_failed_one_without_a_traceback(finished, server, api):
    finished.call("run", PREFECT_API_URL=server).ok()

    [run] = latest_runs(api)
    assert run["state_name"] == "Completed"
    assert [task["state_name"] for task in read_tasks(api, run)] == ["Cached"] * 5

    finished.edit("params.yaml", "kind: digits", 'kind: "no_such_module:load"')
    failed = finished.call("run", PREFECT_API_URL=server)
    assert failed.code == 1
    assert "Traceback" not in failed.text
    assert "No module named 'no_such_module'" in failed.err.splitlines()[-2]
    assert latest_runs(api)[0]["state_name"] == "Failed"


def test_stage_that_dvc_repro_runs_is_a_task_run_without_a_flow_run(finished, server, api):
    def tasks_without_flow():
        listed = api.post("task_runs/filter", {"task_runs": {"flow_run_id": {"is_null_": True}}})
        return {run["id"]: run["name"] for run in listed}

    earlier = tasks_without_flow()
    finished.edit("params.yaml", "recorder: default", "recorder: compact")

    finished.dvc("repro", PREFECT_API_URL=server).ok()

    def recorded():
        return [name for key, name in tasks_without_flow().items() if key not in earlier]

    wait_until(lambda: len(recorded()) >= 2, recorded)
    assert sorted(recorded()) == ["create-artifact-dir", "save-model"]


@pytest.mark.long  # the first test of this file is the same in a fork
def test_process_that_an_api_records_leaves_the_lock_of_dvc_repro(finished, project, server):
    assert project.learner("run", PREFECT_API_URL=server, PYTHONHASHSEED="3").code == 0

    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")


def test_run_from_the_command_line_has_the_name_parameters_and_artifacts_of_a_deployment(
    project, server, api
):
    name = f"run-{project.folder.parent.name}"  # as other tests use the server too
    project = project.copied_to(project.folder.with_name(name))
    first = project.call("run", "-S", "fit.num_epochs=1", PREFECT_API_URL=server)
    second = project.call("run", "-S", "fit.num_epochs=2", PREFECT_API_URL=server)

    assert (first.code, second.code) == (0, 0), first.text + second.text
    runs = latest_runs(api, 2)
    assert [run["name"] for run in runs] == ["num_epochs=1", "num_epochs=2"]
    assert [run["parameters"]["overrides"] for run in runs] == [["fit.num_epochs=1"], ["fit.num_epochs=2"]]
    prefix = name.replace("_", "-")
    artifacts = api.artifacts(runs[1]["id"])
    kinds = ("summary", "curves", "checkpoint", "comparison", "record")
    assert artifacts.keys() == {"fit-progress", *(f"{prefix}-{kind}" for kind in kinds)}
    compared = artifacts[f"{prefix}-comparison"]
    assert compared["description"] == "Compared with num_epochs=1, the previous run of this project"
    rows = {row["name"]: row["difference"] for row in json.loads(compared["data"])}
    assert (rows["epoch"], rows["fit.num_epochs"]) == ("+1", "+1")
    assert_shows_progress(api, runs[1]["id"], epochs=[2])  # the second run resumes the first


def assert_shows_progress(api, run, epochs):
    """Check the progress artifact of the flow run with id *run*, and wait for the logs of its epochs."""
    progress = api.artifacts(run)["fit-progress"]
    assert (progress["data"], progress["description"][:21]) == (100, "epoch 2/2 | train: Ac")

    def read_epochs():
        return [line.partition(" | ")[0] for line in api.logs(run) if line.startswith("epoch ")]

    wait_until(lambda: len(read_epochs()) >= len(epochs), read_epochs)
    assert read_epochs() == [f"epoch {epoch}/2" for epoch in epochs]


def test_run_refuses_an_unknown_stage_before_it_creates_a_flow_run(project, server, api):
    before = latest_runs(api)

    refused = project.call("run", "fitt", PREFECT_API_URL=server)

    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: there is no stage 'fitt'.")
    assert latest_runs(api) == before


SOURCE = """
import traceback
from pathlib import Path
from torch.utils.data import DataLoader
from stages.data import Digits, load_source

def load():
    names = [each.name for each in traceback.extract_stack() if "/pipeline/" in each.filename]
    Path("stack.txt").write_text(" ".join(names))
    for _ in range(3):
        list(DataLoader(range(10), num_workers=1))
    return load_source(Digits())
"""


def test_stage_in_a_flow_run_is_reached_in_ten_calls_and_can_use_workers_of_a_data_loader(project, server):
    """The calls go down one layer each: command, flow, task, engine, stage.

    Workers are forked from a process with Prefect's threads, and must still exit with code 0.
    """
    (project.folder / "source.py").write_text(SOURCE)
    project.edit("params.yaml", "    kind: digits\n    path: null", '    kind: "source:load"')
    project.add_deps()

    run = project.call("run", "load-data", PREFECT_API_URL=server)

    assert run.code == 0, run.text
    assert run.out.splitlines()[-1] == "load-data: ran"
    calls = (project.folder / "stack.txt").read_text().split()
    assert calls[calls.index("run") :] == [
        *("run", "run_stages", "learner", "run_task", "reproduce", "_call_function"),
        *("run_recorded", "run_stage", "_load_data"),
    ]


@pytest.mark.long  # engine/test_several_devices.py compares `dvc repro` and `learner run`, without an API
def test_flow_run_on_two_devices_shows_its_progress_and_leaves_the_lock_of_dvc_repro(
    project, other_project, server, api
):
    for each in (project, other_project):
        each.edit("params.yaml", "device: auto", "device: [cpu, cpu]")
    other_project.ok("dvc", "repro")

    run = project.learner("run", PREFECT_API_URL=server)

    assert run.code == 0, run.text
    assert project.files("dvc.lock", "artifacts") == other_project.files("dvc.lock", "artifacts")
    assert_shows_progress(api, latest_runs(api)[0]["id"], epochs=[1, 2])
