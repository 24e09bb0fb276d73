"""The artifacts of a flow run."""

import logging

import pytest
from prefect import flow, get_client
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL, temporary_settings

from pipeline.flows.artifacts import Artifacts
from pipeline.flows.run_page import write_artifacts, write_curves
from pipeline.project.git import run_git
from pipeline.project.revisions.revision import Results
from stages.contracts.history import History

RESULTS = Results(None, History(), epochs=1, params={}, metrics={"loss": 0.5}, checkpoint=None)


def test_failed_image_is_a_warning(caplog):
    """A history without values gives an image without a size."""
    pytest.importorskip("vl_convert")
    write_curves(RESULTS, Artifacts(None, None, logging.getLogger(__name__)), "learner-curves")

    assert "the image of the curves cannot be drawn: ValueError" in caplog.text


@flow
def record():
    """Write the artifacts of a run that `learner run` has started, and return the id of the run."""
    run = FlowRunContext.get().flow_run
    write_artifacts(RESULTS, run, Artifacts.of_this_run(logging.getLogger(__name__)), "project")
    return run.id


def comparison_of_run(folder, name, monkeypatch):
    """Record a run with *name* in *folder*, and return the description of its comparison."""
    monkeypatch.chdir(folder)
    run = record.with_options(flow_run_name=name)()
    with get_client(sync_client=True) as client:
        found = client.read_artifacts()
    return next(
        each.description
        for each in found
        if (each.flow_run_id, each.type) == (run, "table") and "comparison" in each.key
    )


def test_run_is_compared_with_the_previous_run_of_the_same_project(tmp_path, server, monkeypatch):
    """A project of the same folder name is another project."""
    folders = [tmp_path / parent / "project" for parent in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        run_git(folder, "init", "--quiet")
        author = ("-c", "user.name=t", "-c", "user.email=t@localhost")
        run_git(folder, *author, "commit", "--quiet", "--allow-empty", "-m", str(folder))

    with temporary_settings({PREFECT_API_URL: server}):
        found = [
            comparison_of_run(folders[place], f"run {i}", monkeypatch) for i, place in enumerate((0, 1, 0))
        ]

    assert found == ["No previous run of this project has a record"] * 2 + [
        "Compared with run 0, the previous run of this project"
    ]
