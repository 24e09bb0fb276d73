"""What `learner run` and `dvc repro` record if a Prefect API is configured."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prefect_servers import ENDED, Api
from templates import short
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


class Recorded(NamedTuple):
    """A project after two runs with the name of its folder, of two and of three epochs."""

    project: Any
    files: dict[str, bytes]
    """The lock and the cache after the first run."""
    runs: list[dict[str, Any]]


@pytest.fixture(scope="module")
def recorded(home, server, tmp_path_factory):
    project = short(tmp_path_factory.mktemp("recorded") / "recorded-runs", home)
    project.call("run", PREFECT_API_URL=server).ok()
    files = project.files("dvc.lock", ".dvc/cache")
    project.call("run", "-S", "fit.num_epochs=3", PREFECT_API_URL=server).ok()
    return Recorded(project, files, latest_runs(Api(server), 2))


def test_api_records_the_flow_and_its_five_tasks_with_versions_and_states(finished, recorded, api):
    assert recorded.files == finished.files("dvc.lock", ".dvc/cache")
    run = recorded.runs[0]
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


FIRST_NAME = "cnn, adam, 2 epochs"


def test_run_from_the_command_line_has_the_name_parameters_and_artifacts_of_a_deployment(recorded, api):
    first, second = recorded.runs
    assert [run["name"] for run in recorded.runs] == [FIRST_NAME, "num_epochs=3"]
    assert [run["parameters"]["overrides"] for run in recorded.runs] == [[], ["fit.num_epochs=3"]]
    artifacts = api.artifacts(second["id"])
    kinds = ("summary", "curves", "checkpoint", "comparison", "record")
    assert artifacts.keys() == {"fit-progress", *(f"recorded-runs-{kind}" for kind in kinds)}
    compared = artifacts["recorded-runs-comparison"]
    assert compared["description"] == f"Compared with {FIRST_NAME}, the previous run of this project"
    rows = {row["name"]: row["difference"] for row in json.loads(compared["data"])}
    assert (rows["epoch"], rows["fit.num_epochs"]) == ("+1", "+1")
    compared = api.artifacts(first["id"])["recorded-runs-comparison"]
    assert compared["description"] == "No previous run of this project has a record"


def test_artifacts_of_a_run_have_its_summary_curves_and_checkpoint(recorded, api):
    artifacts = api.artifacts(recorded.runs[1]["id"])

    rows = json.loads(artifacts["recorded-runs-summary"]["data"])
    assert [row["Metric"] for row in rows] == ["Accuracy", "Loss"] * 2
    assert artifacts["recorded-runs-curves"]["data"].startswith("data:image/png;base64,iVBOR")
    checkpoint = artifacts["recorded-runs-checkpoint"]["data"]
    path, model = (
        Path(checkpoint.split("`")[3]),
        recorded.project.folder / "artifacts/checkpoint/model-3.mpk.gz",
    )
    assert path.is_relative_to(recorded.project.folder)
    assert path.read_bytes() == model.read_bytes()
    assert "file://" not in checkpoint  # which a browser does not open from a page of a server


def test_progress_and_logs_of_a_run_have_its_epochs(recorded, api):
    first, second = (run["id"] for run in recorded.runs)

    assert_shows_progress(api, first, [1, 2], count=2)
    assert_shows_progress(api, second, [3], count=3)  # the second run resumes the first
    assert api.wait_for_log(second, "= Learner Summary =")


def assert_shows_progress(api, run, epochs, count):
    """Check the progress artifact of the flow run with id *run*, and wait for the logs of its *epochs*."""
    progress = api.artifacts(run)["fit-progress"]
    assert (progress["data"], progress["description"][:21]) == (100, f"epoch {count}/{count} | train: Ac")

    def read_epochs():
        return [line.partition(" | ")[0] for line in api.logs(run) if line.startswith("epoch ")]

    wait_until(lambda: len(read_epochs()) >= len(epochs), read_epochs)
    assert read_epochs() == [f"epoch {epoch}/{count}" for epoch in epochs]


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


def test_recorded_run_prints_its_events_and_nothing_else(project, server, api):
    run = project.call("run", "create-artifact-dir", "--events", PREFECT_API_URL=server)

    events = [json.loads(line) for line in run.out.splitlines()]
    assert [event["event"] for event in events] == ["stage", "stage", "end"], run.text
    assert [event["state"] for event in events[:2]] == ["running", "ran"]
    assert events[-1]["ok"]
    assert latest_runs(api)[0]["state_name"] == "Completed"


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
        *("run_recorded", "run", "run_stage", "_load_data"),
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
    assert_shows_progress(api, latest_runs(api)[0]["id"], [1, 2], count=2)
