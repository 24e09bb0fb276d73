"""A run produces byte-identical outputs however it is started."""

import json
import sys
import urllib.request

import pytest
from templates import short
from waiting import wait_until

from pipeline.project.versions import VERSIONS


@pytest.fixture(scope="module")
def run_in_a_process(tmp_path_factory, home):
    """Return a project after `learner run` as a process, with a hash seed of its own, and the output."""
    project = short(tmp_path_factory.mktemp("run") / "project", home)
    options = ("-X", "importtime", "-m", "pipeline", "run")
    return project, project.run(sys.executable, *options, PYTHONHASHSEED="2")


def test_dvc_repro_and_run_produce_the_same_lock_and_cache(finished, run_in_a_process):
    """Each runs with a different hash seed, so that the order of a set cannot affect an output."""
    project, run = run_in_a_process

    assert run.code == 0, run.out
    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")
    assert len(project.files(".dvc/cache")) > 20
    stores = [sorted((each.folder / ".runs").glob("*/key.json")) for each in (project, finished)]
    assert [path.read_bytes() for path in stores[0]] == [path.read_bytes() for path in stores[1]]
    assert [path.parent.name for path in stores[0]] == [path.parent.name for path in stores[1]] != []


def test_dvc_repro_runs_each_stage_and_prints_the_summary(repro_output):
    assert [name for name in VERSIONS if f"Running stage '{name}'" in repro_output] == list(VERSIONS)
    assert "= Learner Summary =" in repro_output


def test_run_without_an_api_does_not_import_prefect(run_in_a_process):
    _, run = run_in_a_process

    assert "stages.fit" in run.imported
    assert "prefect" not in run.imported


def test_run_prints_the_outcome_of_each_stage(finished):
    assert finished.call("run").out.splitlines()[-1] == "save-model: unchanged"

    finished.edit("params.yaml", "recorder: default", "recorder: compact")
    lines = finished.call("run").out.splitlines()
    assert (lines[0], lines[-1]) == ("create-artifact-dir: ran", "save-model: ran")

    finished.edit("params.yaml", "recorder: compact", "recorder: default")
    assert finished.call("run").out.splitlines()[-1] == "save-model: restored from the run-cache"


def test_run_accepts_the_stages_and_the_options_of_dvc_repro(finished):
    finished.edit("params.yaml", "recorder: default", "recorder: compact")

    assert finished.call("run", "build-learner").out.splitlines() == [
        *("create-artifact-dir: ran", "load-data: unchanged", "build-learner: unchanged")
    ]
    forced = finished.call("run", "--force", "--downstream", "save-model")
    assert forced.out.splitlines()[-1] == "save-model: ran"
    assert "fit: " not in forced.out

    refused = finished.call("run", "--downstream")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "error: --downstream begins at a stage: name one, for example fit\n"


def test_quiet_run_writes_nothing_and_a_verbose_one_its_debug_logs(finished):
    finished.edit("params.yaml", "recorder: default", "recorder: compact")
    quiet = finished.call("run", "-q")
    assert (quiet.code, quiet.text) == (0, "")

    finished.edit("params.yaml", "recorder: compact", "recorder: default")
    verbose = finished.call("run", "-v")
    assert verbose.out.splitlines()[-1] == "save-model: restored from the run-cache"
    assert "DEBUG: Assuming 'fit' to be a stage inside 'dvc.yaml'" in verbose.out

    assert finished.call("run", "-q", "-v").err == "error: -q and -v exclude each other. Pass one of them\n"


def query(address, path):
    """Return all objects of kind *path*, such as "flow_runs", from the Prefect API at *address*."""
    orders = {"flow_runs": "START_TIME_ASC", "logs": "TIMESTAMP_ASC"}
    body = json.dumps({"sort": orders[path]} if path in orders else {}).encode()
    request = urllib.request.Request(f"{address}/{path}/filter", body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310  loopback
        return json.load(answer)


def wait_for_runs(address, count):
    """Return all flow runs and finished task runs, after *count* flow runs have arrived with their tasks."""

    def arrived():
        flows, tasks = query(address, "flow_runs"), query(address, "task_runs")
        done = [run for run in tasks if run["state_type"] in {"COMPLETED", "FAILED"}]
        done.sort(key=lambda run: run["start_time"])
        return (flows, done) if len(flows) == count and len(done) >= 5 * count else None

    return wait_until(arrived)


def test_api_records_the_flow_and_its_five_tasks_with_versions_and_states(finished, project, server):
    stages = ["create-artifact-dir", "load-data", "build-learner", "fit", "save-model"]

    assert project.learner("run", PREFECT_API_URL=server, PYTHONHASHSEED="3").code == 0
    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")
    flows, tasks = wait_for_runs(server, 1)
    assert [run["state_name"] for run in flows] == ["Completed"]
    assert [run["name"].rsplit("-", 1)[0] for run in tasks] == stages
    assert [run["task_version"] for run in tasks] == [VERSIONS[name] for name in stages]
    assert [run["state_name"] for run in tasks] == ["Completed"] * 5

    assert project.call("run", PREFECT_API_URL=server).code == 0
    flows, tasks = wait_for_runs(server, 2)
    assert [run["state_name"] for run in flows] == ["Completed"] * 2
    assert [run["state_name"] for run in tasks[5:]] == ["Cached"] * 5

    project.edit("params.yaml", "kind: digits", 'kind: "no_such_module:load"')
    failed = project.call("run", PREFECT_API_URL=server)
    assert failed.code == 1
    assert "Traceback" not in failed.text
    assert "No module named 'no_such_module'" in failed.err.splitlines()[-2]

    project.edit("params.yaml", 'kind: "no_such_module:load"', "kind: digits")
    project.edit("params.yaml", "recorder: default", "recorder: compact")
    project.dvc("repro", PREFECT_API_URL=server).ok()

    def tasks_without_flow():
        return {run["name"] for run in query(server, "task_runs") if run["flow_run_id"] is None}

    wait_until(lambda: len(tasks_without_flow()) >= 2, tasks_without_flow)
    assert tasks_without_flow() == {"create-artifact-dir", "save-model"}


def test_run_from_the_command_line_has_the_name_parameters_and_artifacts_of_a_deployment(project, server):
    name = f"run-{project.folder.parent.name}"  # as other tests use the server too
    project = project.copied_to(project.folder.with_name(name))
    first = project.call("run", "-S", "fit.num_epochs=1", PREFECT_API_URL=server)
    second = project.call("run", "-S", "fit.num_epochs=2", PREFECT_API_URL=server)

    assert (first.code, second.code) == (0, 0), first.text + second.text
    runs = query(server, "flow_runs")[-2:]
    assert [run["name"] for run in runs] == ["num_epochs=1", "num_epochs=2"]
    assert [run["parameters"]["overrides"] for run in runs] == [["fit.num_epochs=1"], ["fit.num_epochs=2"]]
    prefix = name.replace("_", "-")
    artifacts = {
        each["key"]: each for each in query(server, "artifacts") if each["flow_run_id"] == runs[1]["id"]
    }
    kinds = ("summary", "curves", "checkpoint", "comparison", "record")
    assert artifacts.keys() == {"fit-progress", *(f"{prefix}-{kind}" for kind in kinds)}
    compared = artifacts[f"{prefix}-comparison"]
    assert compared["description"] == "Compared with num_epochs=1, the previous run of this project"
    rows = {row["name"]: row["difference"] for row in json.loads(compared["data"])}
    assert (rows["epoch"], rows["fit.num_epochs"]) == ("+1", "+1")
    assert_shows_progress(server, runs[1]["id"], epochs=[2])  # the second run resumes the first


def assert_shows_progress(server, flow_run, epochs):
    """Check the progress artifact of the flow run with id *flow_run*, and wait for the logs of its epochs."""
    [progress] = [
        each
        for each in query(server, "artifacts")
        if (each["flow_run_id"], each["key"]) == (flow_run, "fit-progress")
    ]
    assert (progress["data"], progress["description"][:21]) == (100, "epoch 2/2 | train: Ac")

    def read_epochs():
        lines = [each["message"] for each in query(server, "logs") if each["flow_run_id"] == flow_run]
        return [line.partition(" | ")[0] for line in lines if line.startswith("epoch ")]

    wait_until(lambda: len(read_epochs()) >= len(epochs), read_epochs)
    assert read_epochs() == [f"epoch {epoch}/2" for epoch in epochs]


def test_run_refuses_an_unknown_stage_before_it_creates_a_flow_run(project, server):
    before = query(server, "flow_runs")

    refused = project.call("run", "fitt", PREFECT_API_URL=server)

    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: there is no stage 'fitt'.")
    assert query(server, "flow_runs") == before


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

    run = project.call("run", "load-data", PREFECT_API_URL=server)

    assert run.code == 0, run.text
    assert run.out.splitlines()[-1] == "load-data: ran"
    calls = (project.folder / "stack.txt").read_text().split()
    assert calls[calls.index("run") :] == [
        *("run", "run_stages", "learner", "load_data_task", "reproduce", "cmd_run"),
        *("run_recorded", "run_stage", "_load_data"),
    ]


@pytest.mark.long  # test_several_devices.py compares `dvc repro` and `learner run`, without an API
def test_flow_run_on_two_devices_shows_its_progress_and_leaves_the_lock_of_dvc_repro(
    project, other_project, server
):
    for each in (project, other_project):
        each.edit("params.yaml", "device: auto", "device: [cpu, cpu]")
    other_project.ok("dvc", "repro")

    run = project.learner("run", PREFECT_API_URL=server)

    assert run.code == 0, run.text
    assert project.files("dvc.lock", "artifacts") == other_project.files("dvc.lock", "artifacts")
    assert_shows_progress(server, query(server, "flow_runs")[-1]["id"], epochs=[1, 2])
