"""The tasks, their states and the bodies that they run, without a Prefect API."""

import asyncio
import inspect
import logging
import random
import re
import sys
import time
from pathlib import Path
from tempfile import gettempdir

import pytest
from pages import ROOT, page
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed
from prefect.utilities.math import clamped_poisson_interval
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from pipeline.engine.reproduce import Outcome
from pipeline.engine.stage_run import read_key_entries, run_stage
from pipeline.flows import prefect_patches
from pipeline.flows.experiments import (
    Experiment,
    fetch_experiments,
    push_results,
    run_experiment,
    warn_of_temporary_folder,
)
from pipeline.flows.flow import has_passed, learner
from pipeline.flows.task_run import TASKS, hide_expected_errors
from pipeline.project.git import run_git
from pipeline.project.versions import VERSIONS
from pipeline.project.yaml_files import read_yaml
from stages.contracts.errors import ParamsError, RunInterruptedError, StageError, StageFailedError
from stages.renderers import NoRenderer

NAMES = ("create-artifact-dir", "load-data", "build-learner", "fit", "save-model")


@pytest.mark.parametrize("name", NAMES)
def test_each_stage_has_a_task_with_its_name_and_version(name):
    task = TASKS[name]

    assert (task.name, task.version, task.cache_policy) == (name, VERSIONS[name], NO_CACHE)
    assert task.retries == (2 if name == "fit" else 0)
    assert tuple(TASKS) == tuple(VERSIONS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("outcome", "state", "message"),
    [
        (None, "Completed", "{} ran"),
        (Outcome.RAN, "Completed", "{} ran"),
        (Outcome.UNCHANGED, "Cached", "DVC: unchanged"),
        (Outcome.RESTORED, "Cached", "DVC: restored from the run-cache"),
    ],
)
def test_state_of_a_task_is_the_outcome_that_dvc_reports(name, outcome, state, message):
    calls = []

    def execute(stage):
        calls.append(stage)
        return outcome

    final = TASKS[name].fn(execute)

    assert calls == [name]
    assert final.is_completed()
    assert (final.name, final.message) == (state, message.format(name))


@pytest.mark.parametrize(
    ("error", "is_hidden"), [(StageError("a"), True), (TimeoutError(), True), (ValueError("a"), False)]
)
@pytest.mark.parametrize("name", ["prefect.flow_runs", "prefect.task_runs", "prefect.engine"])
def test_traceback_is_hidden_only_for_an_expected_error(error, is_hidden, name):
    hide_expected_errors()
    try:
        raise error
    except type(error):
        record = logging.LogRecord(name, logging.ERROR, "", 1, "failed", None, sys.exc_info())

    assert logging.getLogger(name).filter(record)
    assert (record.exc_info is None) == is_hidden


def test_log_record_without_an_exception_is_kept():
    hide_expected_errors()
    record = logging.LogRecord("prefect.engine", logging.INFO, "", 1, "fine", None, None)

    assert logging.getLogger("prefect.engine").filter(record)


def test_mistake_in_a_log_call_is_still_printed(capsys):
    """The errors of a server are hidden, and not those of the logs of a user."""
    hide_expected_errors()
    logger, handler = logging.Logger("my_lab"), logging.StreamHandler()
    logger.addHandler(handler)
    logger.error("%d", "no number")

    assert "Logging error" in capsys.readouterr().err


def test_deadline_counts_as_passed_a_tenth_of_a_second_early():
    now = time.monotonic()

    assert not has_passed(None)
    assert has_passed(now)
    assert has_passed(now + 0.05)
    assert not has_passed(now + 3600)


class StepCounter(NoRenderer):
    """A renderer that counts the steps of training."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def step(self, progress):
        self.steps += 1


def test_each_stage_runs_in_this_process_and_writes_its_outputs(project, monkeypatch):
    """Only the stage that trains reports its steps to the renderer."""
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    steps = {}

    for name in VERSIONS:
        renderer = StepCounter()
        run_stage(name, renderer)
        steps[name] = renderer.steps

    assert {name for name, count in steps.items() if count} == {"fit"}
    for path in ("config.json", "learner", "checkpoint", "metrics.json", "model.mpk.gz"):
        assert (project.folder / "artifacts" / path).exists()
    assert (project.folder / "data/prepared/dataset.json").exists()
    assert "stages/models/cnn.py" in read_key_entries()["code"]


def test_unknown_stage_is_refused_with_the_nearest_name():
    with pytest.raises(ParamsError, match=r"'fitt'.*Did you mean 'fit'\?"):
        run_stage("fitt")


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (RuntimeError("CUDA error"), True),
        (OSError("no space"), True),
        (StageError("a mistake"), False),
        (RunInterruptedError("stopped"), False),
        (TimeoutError("too long"), False),
    ],
)
def test_fit_is_retried_only_after_an_unexpected_error(error, is_retried):
    task = TASKS["fit"]

    assert task.retries == 2
    assert task.retry_condition_fn(task, None, Failed(data=error)) == is_retried


def test_every_parameter_has_a_type_a_default_and_a_description_in_the_form_of_a_deployment():
    properties = learner.parameters.properties

    assert set(properties) == set(inspect.signature(learner).parameters)
    for name, entry in properties.items():
        assert "default" in entry, name
        assert "type" in entry or "anyOf" in entry, name
        assert entry.get("description"), f"{name} has no description"


def test_parameters_of_the_flow_are_in_the_readme_and_in_prefect_yaml():
    parameters = inspect.signature(learner).parameters
    table = re.findall(
        r"^\| `(\w+)` \|", page("pipeline/flows/README.md").section("Parameters of the flow"), re.M
    )
    deployment = read_yaml(ROOT / "prefect.yaml")["deployments"][0]["parameters"]

    assert sorted(table) == sorted(deployment) == sorted(parameters)
    assert deployment == {name: each.default for name, each in parameters.items()}


def test_shallow_clone_gets_the_experiments_of_its_remote(finished, tmp_path):
    run_git(finished.folder, "update-ref", "refs/exps/aa/bb/nightly-1", "HEAD")
    clones = [tmp_path / name for name in ("shallow", "alone")]
    for clone in clones:
        run_git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{finished.folder}", str(clone))
    run_git(clones[1], "remote", "remove", "origin")

    for folder in (*clones, finished.folder):
        fetch_experiments(folder)

    experiment, head = run_git(clones[0], "rev-parse", "refs/exps/aa/bb/nightly-1", "HEAD").split()
    assert experiment == head
    assert run_git(clones[1], "for-each-ref", "refs/exps") == ""


def test_experiment_that_exists_does_not_run_again(finished, monkeypatch, caplog):
    """A run whose push failed is retried with the same name."""
    monkeypatch.chdir(finished.folder)
    run_git(finished.folder, "update-ref", "refs/exps/aa/bb/nightly-1", "HEAD")
    before = finished.files(".runs")

    with caplog.at_level("INFO"):
        experiment = Experiment("nightly-1", ["fit.num_epochs=3"], [])
        run_experiment(experiment, logging.getLogger(__name__), flow_run="", deadline=None)

    assert caplog.messages == ["the experiment nightly-1 of this run exists"]
    assert finished.files(".runs") == before


def test_experiment_that_would_lack_a_file_of_deps_is_refused_with_what_to_do(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    (finished.folder / "data.npz").touch()
    finished.edit("dvc.yaml", "- stages/data/sources\n", "- stages/data/sources\n      - data.npz\n")

    with pytest.raises(ParamsError, match=r"^dvc.yaml: git does not track data.npz, .* `git add data.npz`"):
        run_experiment(
            Experiment("nightly-1", [], []), logging.getLogger(__name__), flow_run="", deadline=None
        )


@pytest.mark.long  # test_experiment_that_exists_does_not_run_again
def test_experiment_whose_push_failed_is_pushed_by_the_retry(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(finished.folder)
    finished.dvc("remote", "add", "--default", "store", str(tmp_path / "store")).ok()
    run_git(finished.folder, "remote", "add", "origin", str(tmp_path / "origin.git"))
    finished.dvc("exp", "run", "--name", "nightly-1", "-S", "save_model.epoch=best").ok()
    monkeypatch.setenv("PATH", finished.environment["PATH"])
    printed = []

    with pytest.raises(StageFailedError) as failed:
        push_results("nightly-1", printed.append)
    run_git(tmp_path, "init", "--quiet", "--bare", "origin.git")
    run_git(finished.folder, "push", "--quiet", "origin", "HEAD")
    push_results("nightly-1", printed.append)

    assert "origin.git" in f"{failed.value} {printed}"
    assert "/nightly-1" in run_git(tmp_path / "origin.git", "for-each-ref", "refs/exps")
    assert list((tmp_path / "store").rglob("*"))


@pytest.mark.parametrize(
    ("folder", "push", "warnings"),
    [
        ("/home/user/project", False, []),
        (f"{gettempdir()}/clone", True, ["is a temporary folder, and the run store may be removed with it"]),
        (f"{gettempdir()}/clone", False, ["the experiment, the cache and the run store may be removed"]),
    ],
)
def test_run_in_a_temporary_folder_reports_what_is_lost(folder, push, warnings):
    reported = []

    warn_of_temporary_folder(Path(folder), reported.append, push=push)

    assert len(reported) == len(warnings)
    assert all(warning in text for warning, text in zip(warnings, reported, strict=True))
    assert all(text.endswith("Set push") != push for text in reported)


def test_connections_of_prefect_do_not_draw_from_the_generator_that_training_uses():
    """Its threads send pings every 20 seconds, and repeat requests, in the process that trains."""
    prefect_patches.apply()

    async def ping():
        async with serve(lambda connection: connection.wait_closed(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect(f"ws://127.0.0.1:{port}", proxy=None) as connection:
                await (await connection.ping())

    before = random.getstate()
    asyncio.run(ping())
    assert 0.7 <= clamped_poisson_interval(1.0, 0.3) <= 1.3

    assert random.getstate() == before
