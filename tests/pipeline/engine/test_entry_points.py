"""A run produces byte-identical outputs however it is started."""

import sys

import pytest
from other_machine import PROPERTIES, place

from pipeline.project.versions import VERSIONS


@pytest.fixture(scope="module")
def run_in_a_process(tmp_path_factory, home):
    """Return a project after `learner run` as a process on another machine, and the output.

    The process has another hash seed too, so that the order of a set cannot affect an output.
    """
    project = place(tmp_path_factory.mktemp("run"), home, "\n".join(PROPERTIES.values()))
    options = ("-X", "importtime", "-m", "other_machine", "run")
    return project, project.run(sys.executable, *options, PYTHONHASHSEED="2")


def test_dvc_repro_in_forks_and_run_in_a_process_produce_the_same_lock_and_cache(finished, run_in_a_process):
    project, run = run_in_a_process

    assert run.code == 0, run.out
    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")
    assert len(project.files(".dvc/cache")) > 20
    stores = [sorted((each.folder / ".runs").glob("*/key.json")) for each in (project, finished)]
    assert [path.read_bytes() for path in stores[0]] == [path.read_bytes() for path in stores[1]]
    assert [path.parent.name for path in stores[0]] == [path.parent.name for path in stores[1]] != []


@pytest.mark.long  # the test before
def test_dvc_repro_in_processes_produces_the_same_lock_and_cache(finished, project):
    project.ok("dvc", "repro", PYTHONHASHSEED="1")

    assert project.files("dvc.lock", ".dvc/cache") == finished.files("dvc.lock", ".dvc/cache")


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
    reason = 'save_model.recorder: "default" → "compact"'
    assert lines[:2] == [f"create-artifact-dir is out of date: {reason}", "create-artifact-dir: ran"]
    assert lines[-2].startswith(f"save-model is out of date: {reason}; artifacts/config.json")
    assert lines[-1] == "save-model: ran"

    finished.edit("params.yaml", "recorder: compact", "recorder: default")
    assert finished.call("run").out.splitlines()[-1] == "save-model: restored from the run-cache"


def test_run_accepts_the_stages_and_the_options_of_dvc_repro(finished):
    finished.edit("params.yaml", "recorder: default", "recorder: compact")

    assert finished.call("run", "build-learner").out.splitlines()[1:] == [
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
    quiet = finished.call("run", "-q", "create-artifact-dir")
    assert (quiet.code, quiet.text) == (0, "")

    finished.edit("params.yaml", "recorder: compact", "recorder: default")
    verbose = finished.call("run", "-v", "create-artifact-dir")
    assert verbose.out.splitlines()[-1] == "create-artifact-dir: ran"
    assert "DEBUG: Assuming 'create-artifact-dir' to be a stage inside 'dvc.yaml'" in verbose.out

    assert finished.call("run", "-q", "-v").err == "error: -q and -v exclude each other. Pass one of them\n"
