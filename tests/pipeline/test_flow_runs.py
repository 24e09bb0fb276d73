"""Runs of the flow in the process of a test, recorded by a server."""

import os
import threading
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from waiting import wait_until

from pipeline.engine.lock import project_lock
from pipeline.engine.reproduce import select_stages
from pipeline.flows.flow import learner, run_from_command_line
from pipeline.versions import VERSIONS
from stages.contracts.errors import ParamsError, StageError

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


def is_watched():
    """Return whether a thread watches for an outage of the server."""
    return any(each.name == "server-outage" for each in threading.enumerate())


@pytest.mark.long
def test_run_that_exceeds_its_timeout_names_the_interrupted_stage(workspace):
    state = run(timeout_seconds=0.01)

    assert state.name == "TimedOut"
    assert f"timed out after 0.01 s (timeout_seconds): {FIRST} was interrupted" in state.message


def test_run_of_targets_without_fit_completes_in_a_workspace_without_results(project, server, monkeypatch):
    monkeypatch.chdir(project.folder)
    with temporary_settings({PREFECT_API_URL: server}):
        state = learner(experiment=False, targets=["load-data"], return_state=True)

    assert state.is_completed()
    assert (project.folder / "data/prepared").is_dir()
    assert not (project.folder / "artifacts/train").exists()


def test_run_waits_for_the_workspace_no_longer_than_its_timeout(workspace):
    with project_lock():
        state = run(timeout_seconds=0.5)

    assert state.is_failed()
    with pytest.raises(StageError, match=f"in use by pid {os.getpid()}"):
        state.result()


def test_server_is_watched_from_the_last_stage_until_the_command_returns(workspace):
    outcomes = {}

    with project_lock(), run_from_command_line(outcomes.__setitem__):
        assert not is_watched()
        assert run().is_completed()
        assert is_watched()

    assert outcomes == {FIRST: "ran"}
    wait_until(lambda: not is_watched())


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
