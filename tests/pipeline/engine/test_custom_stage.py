"""A stage whose program is the user's own, and the commands in a project that has one."""

from pathlib import Path

import pytest

from pipeline.engine.custom_stage import run_custom_stage
from pipeline.project.check import check_stages
from pipeline.project.dependencies import find_missing_deps
from pipeline.project.params import Params
from stages.contracts.errors import ParamsError, StageError
from stages.create_artifact_dir import (
    CreateArtifactDirConfig,
    CreateArtifactDirPaths,
    create_artifact_dir,
)

ROOT = Path(__file__).parents[3]
DEFINITION = """
vars:
  - paths: {artifacts: artifacts, data: data, result: artifacts/result.txt}
stages:
  count:
    cmd: python count.py
    deps: [count.py]
    params: [fit]
    outs: ["${paths.result}"]
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Change to a project whose stage `count` has a program, and return the list of its calls."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text(DEFINITION)
    Path("params.yaml").write_text("fit: {num_epochs: 3, device: cpu}\n")
    Path("count.py").write_text("")
    return []


def count(calls, *, fails=False):
    """Return a program that adds the text of what it finds to *calls*."""

    def program(params, paths, folder):
        notes = folder / "notes"
        calls.append(notes.read_text() if notes.exists() else "")
        notes.write_text("begun")
        if fails:
            raise RuntimeError("stopped")
        (folder / paths["result"].name).write_text(str(params.fit.num_epochs))

    return program


def test_program_continues_in_the_folder_of_an_interrupted_call_and_its_outputs_are_published(calls):
    with pytest.raises(RuntimeError, match="stopped"):
        run_custom_stage("count", count(calls, fails=True))
    assert not Path("artifacts").exists()

    run_custom_stage("count", count(calls))

    assert calls == ["", "begun"]
    assert Path("artifacts/result.txt").read_text() == "3"


def test_outputs_of_a_finished_call_are_published_again_without_a_call(calls):
    run_custom_stage("count", count(calls))
    Path("artifacts/result.txt").unlink()

    run_custom_stage("count", count(calls))

    assert calls == [""]
    assert Path("artifacts/result.txt").read_text() == "3"


@pytest.mark.parametrize(
    ("name", "content"), [("params.yaml", "fit: {num_epochs: 4, device: cpu}\n"), ("count.py", "pass\n")]
)
def test_other_params_or_code_have_a_folder_of_their_own(calls, name, content):
    run_custom_stage("count", count(calls))
    Path(name).write_text(content)

    run_custom_stage("count", count(calls))

    assert calls == ["", ""]


def test_damaged_outputs_are_made_again(calls):
    run_custom_stage("count", count(calls))
    [stored] = Path(".runs").glob("*/result.txt")
    stored.write_text("damaged")

    run_custom_stage("count", count(calls))

    assert calls == ["", ""]
    assert Path("artifacts/result.txt").read_text() == "3"


def test_edit_while_the_program_runs_is_an_error_and_nothing_is_published(calls):
    def edit(params, paths, folder):
        count(calls)(params, paths, folder)
        Path("count.py").write_text("edited\n")

    with pytest.raises(StageError, match="a dependency of count was changed while it ran"):
        run_custom_stage("count", edit)

    assert not Path("artifacts").exists()


def test_stage_without_outputs_or_with_two_of_one_name_is_refused(calls):
    with pytest.raises(ParamsError, match="dvc.yaml has no stage 'other' with outs. Add it"):
        run_custom_stage("other", count(calls))

    Path("dvc.yaml").write_text(DEFINITION.replace("outs: [", "outs: [other/result.txt, "))
    with pytest.raises(ParamsError, match="two outs of the stage 'count' have the same name"):
        run_custom_stage("count", count(calls))


def test_deps_of_a_stage_that_the_project_lacks_are_not_missed(calls):
    Path("model.py").write_text("")
    params = Params.model_validate({"build_learner": {"model": {"kind": "model:Net"}}})

    assert find_missing_deps(params) == []


FIVE = {
    name: {"cmd": f"learner stage {name}"}
    for name in ("create-artifact-dir", "load-data", "build-learner", "fit", "save-model")
}


@pytest.mark.parametrize(
    ("stages", "found"),
    [
        (
            FIVE | {"fit": {"cmd": "python train.py"}},
            "a program of its own in the stage fit, 'python train.py'",
        ),
        ({"fit": FIVE["fit"]}, "no stage create-artifact-dir, load-data, build-learner, save-model"),
    ],
)
def test_project_with_other_stages_is_refused_by_commands_that_run_the_five(stages, found):
    with pytest.raises(ParamsError, match=found):
        check_stages({"stages": stages})

    check_stages({"stages": FIVE})


def test_outputs_of_other_stages_stay_in_the_artifact_directory(tmp_path):
    paths = {name: tmp_path / "artifacts" / name for name in ("config", "layout", "metrics", "samples/all")}
    for name in ("samples/all", "stale"):
        (tmp_path / "artifacts" / name).mkdir(parents=True)
    own = CreateArtifactDirPaths(tmp_path / "artifacts", paths["config"], paths["layout"], owned=paths)

    create_artifact_dir(CreateArtifactDirConfig(), own, {})

    assert {path.name for path in own.artifacts.iterdir()} == {"config", "layout", "samples"}


@pytest.mark.long
def test_commands_report_a_project_with_its_own_training_loop(open_project, tmp_path):
    project = open_project(tmp_path / "own")
    project.folder.mkdir()
    project.environment["PYTHONPATH"] = str(ROOT)
    project.learner("init", ".", "--template", "custom-loop").ok()
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 1")
    project.ok("dvc", "repro")

    run, evaluate = project.learner("run"), project.learner("evaluate")

    assert (run.code, "Traceback" in run.err) == (2, False)
    assert "Run `dvc repro` or `dvc exp run`" in run.err
    assert "vars.paths has no learner, which this command needs" in evaluate.err
    assert "fit                  own program  up to date" in project.learner("status").out
    assert "build-learner" not in project.learner("status").out
    assert "check failed" not in project.learner("doctor").text
    assert "valid/Accuracy" in project.learner("compare").out
