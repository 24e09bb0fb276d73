"""A stage in this process, as `learner stage` and `learner run` call it."""

import gc

import pytest

from pipeline.engine.stage_run import run_stage


@pytest.fixture
def process_at_its_start():
    """Collect no garbage, as a process of ``learner`` at its start."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("process_at_its_start")
def test_stage_collects_garbage_but_leaves_out_what_was_imported(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)

    run_stage("create-artifact-dir")

    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_dvc_repro_check_and_init_name_a_folder_that_dvc_cannot_use(project):
    project.folder = project.folder.rename(project.folder.with_name("a {x}"))

    calls = [
        project.dvc("repro", "create-artifact-dir"),
        project.call("check"),
        project.call("init", "new"),
    ]

    assert all(f"DVC and git cannot use the path '{project.folder}" in call.text for call in calls)
    assert not (project.folder / "new").exists()
