"""Every template of `learner init` makes a project that trains, resumes, and can be compared."""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from command_line import parse
from pages import Page
from ruamel.yaml import YAML
from waiting import wait_until

from pipeline.project.check import PARAMS, find_late_mistakes
from pipeline.project.dependencies import find_missing_deps
from pipeline.project.inputs import find_missing_data
from pipeline.project.params import read_params
from pipeline.project.yaml_files import read_definition, read_yaml
from pipeline.scaffold.new_project import (
    PLOT,
    Installation,
    list_templates,
    project_files,
    report_missing_packages,
)

ROOT = Path(__file__).parents[3]
NAMES = list_templates()
TEST_PARTS = """
import json

from pipeline.project.check import END, main


def test_parts(tmp_path):
    main(str(tmp_path / "result"))

    *mistakes, end = [json.loads(line) for line in (tmp_path / "result").read_text().splitlines()]
    assert mistakes
    assert not any(mistake for _, mistake in mistakes)
    assert end == END
"""
OUTPUTS = ("dvc.lock", "artifacts", "data")


def read_files(name):
    return project_files(Installation("learner-pipeline==1"), template=name)


@pytest.fixture
def new_project(request, open_project, tmp_path):
    """Return a project that `learner init` created from a template in an empty folder."""
    project = open_project(tmp_path / "own")
    project.folder.mkdir()
    project.call("init", ".", "--template", request.param).ok()
    return project


every_template = pytest.mark.parametrize("new_project", NAMES, indirect=True)


@pytest.mark.long
@every_template
def test_new_project_is_valid_committed_and_passes_its_tests(new_project):
    assert new_project.ok("git", "status", "--short") == ""
    assert new_project.call("check").out.splitlines()[-1] == "params.yaml is valid"
    assert re.search(r"\d passed", new_project.ok("make", "test"))


PARAMS_OF = {name: read_files(name).get("params.yaml", "") for name in NAMES}
PROGRAMS = [name for name, text in PARAMS_OF.items() if "exports:" in text and "views:" not in text]
"""The templates whose model is called with the inputs of one sample at a time."""


@pytest.mark.long  # tests/inference/test_exports.py, on one model
@pytest.mark.parametrize("new_project", PROGRAMS, indirect=True)
def test_model_of_a_template_is_exported_as_programs_with_its_metrics(new_project):
    """save-model compares the programs with the model, whose metrics are those of the run."""
    new_project.edit("params.yaml", "exports: []", "exports: [safetensors, onnx, pt2, model_card]")

    new_project.dvc("repro").ok()

    artifacts = new_project.folder / "artifacts"
    files = {path.name for path in (artifacts / "exports").iterdir()}
    assert {"model.onnx", "model.pt2", "README.md"} < files
    metrics = json.loads((artifacts / "metrics.json").read_text())
    epoch = json.loads((artifacts / "exports/manifest.json").read_text())["epoch"]
    recorded = next(values["valid"] for values in (metrics, metrics["best"]) if values["epoch"] == epoch)
    for model in ("model.mpk.gz", "exports/model.safetensors"):
        evaluated = new_project.call("evaluate", "--model", f"artifacts/{model}", "--json")
        assert json.loads(evaluated.out)["data"]["metrics"] == recorded


@pytest.mark.long  # tests/test_structured_runs.py: test_evaluation_of_the_saved_epoch_has_its_views
@pytest.mark.parametrize("new_project", ["self-supervised"], indirect=True)
def test_evaluation_has_the_random_views_of_the_epoch_of_the_weights(new_project):
    for before, after in (("num_epochs: 20", "num_epochs: 2"), ("width: 32", "width: 4")):
        new_project.edit("params.yaml", before, after)
    new_project.call("run").ok()

    evaluated = new_project.call("evaluate", "--json").ok()

    metrics = json.loads((new_project.folder / "artifacts/metrics.json").read_text())
    assert json.loads(evaluated)["data"]["metrics"] == metrics["valid"]


@pytest.fixture
def template_files(request, open_project, tmp_path, monkeypatch):
    """Return a project with the files of a template, without the repository that `learner init` creates."""
    for name, text in read_files(request.param).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return open_project(tmp_path)


SLOW_TO_IMPORT = ("hugging-face",)
WITHOUT_SLOW = [
    pytest.param(name, marks=pytest.mark.long) if name in SLOW_TO_IMPORT else name for name in NAMES
]


@pytest.mark.parametrize("template_files", WITHOUT_SLOW, indirect=True)
def test_files_of_a_template_pass_their_tests(template_files):
    """One more test uses the parts that params.yaml names as `learner check` does."""
    (template_files.folder / "test_parts.py").write_text(TEST_PARTS)

    done = template_files.fork("pytest", "-q", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")

    assert done.code == 0, done.text


@pytest.mark.parametrize("template_files", NAMES, indirect=True)
def test_params_of_a_template_are_valid_and_dvc_tracks_its_files(template_files):
    params = read_params()

    assert find_late_mistakes(params, read_yaml(PARAMS), read_definition()) == []
    assert find_missing_data(params) == []
    assert find_missing_deps(params) == []


@pytest.mark.parametrize("name", NAMES)
def test_readme_has_a_title_and_a_description_and_names_every_file_to_edit(name):
    made = read_files(name)
    title, _, description, *_ = made["README.md"].splitlines()

    assert re.fullmatch("# [A-Z].*[^.]", title)
    assert re.fullmatch(r"[A-Z].{,100}\.", description)
    assert f"| `{name}` |" in (ROOT / "pipeline/scaffold/README.md").read_text()
    hidden = {"Makefile", "README.md", ".gitignore", ".dvcignore", PLOT}
    assert [path for path in made.keys() - hidden if f"`{path}`" not in made["README.md"]] == []


@pytest.mark.parametrize("name", NAMES)
def test_readme_names_no_data_of_the_user_in_a_folder_that_git_ignores(name):
    """`dvc add` refuses such data, and a sweep has no copy of it."""
    readme = read_files(name)["README.md"]

    assert re.findall(r"\b(?:path|masks|boxes): data/\S+", readme) == []


def list_commands(name):
    """Return the commands in the README of the template *name*, also the programs in its text."""
    readme = Page(name, read_files(name)["README.md"])
    return [*readme.commands(), *re.findall(r"`(python [^`]+)`", readme.text)]


@pytest.mark.parametrize("name", NAMES)
def test_commands_in_the_readme_of_a_template_exist(name):
    commands = [shlex.split(command) for command in list_commands(name)]

    assert ["dvc", "exp", "run"] in commands
    for program, *arguments in commands:
        if program == "learner":
            parse(arguments)


@pytest.mark.long  # test_commands_in_the_readme_of_a_template_exist
@every_template
def test_commands_in_the_readme_of_a_template_run(new_project, request):
    """Run them in their order; 30 epochs, which take minutes, are 2."""
    for command in list_commands(request.node.callspec.params["new_project"]):
        new_project.ok("bash", "-c", command.replace("num_epochs=30", "num_epochs=2"))


@pytest.mark.parametrize("name", NAMES)
def test_template_has_no_data_file(name):
    """A function or a stage of the project generates the data."""
    kinds = {Path(path).suffix for path in read_files(name).keys() - {PLOT}}

    assert kinds <= {"", ".md", ".py", ".txt", ".yaml"}


@pytest.mark.parametrize("name", NAMES)
def test_stages_of_learner_have_the_params_and_outputs_of_the_default_project(name):
    """A template may add stages of its own, and dependencies."""
    default, own = (
        YAML(typ="safe").load(read_files(each)["dvc.yaml"])["stages"] for each in ("minimal", name)
    )

    for stage in [each for each in own if own[each]["cmd"].startswith("learner stage")]:
        assert {**own[stage], "deps": None} == {**default[stage], "deps": None}
        built_in = set(default[stage].get("deps", [])) - {"model.py", "source.py"}
        assert built_in <= set(own[stage].get("deps", []))


def test_init_without_a_folder_lists_the_templates(open_project, tmp_path):
    printed = open_project(tmp_path).call("init")
    data = json.loads(open_project(tmp_path).call("init", "--json").ok())["data"]

    lines = printed.out.splitlines()
    assert (printed.code, printed.err) == (0, "")
    assert [line.split()[0] for line in lines[: len(NAMES)]] == NAMES
    assert data["minimal"] == read_files("minimal")["README.md"].splitlines()[2]
    assert lines[-1].startswith("Example: learner init my-project --template ")
    assert lines[: len(NAMES)] == [f"{name:{max(map(len, NAMES))}}  {data[name]}" for name in NAMES]
    assert list(tmp_path.iterdir()) == []


def test_unknown_template_is_refused_with_the_names_and_the_nearest(open_project, tmp_path):
    refused = open_project(tmp_path).call("init", "own", "--template", "minimla")

    assert (refused.code, "Traceback" in refused.err) == (2, False)
    assert f"there is no template 'minimla'. Use one of {', '.join(NAMES)}" in refused.err
    assert "Did you mean 'minimal'?" in refused.err
    assert not (tmp_path / "own").exists()


def test_template_without_a_folder_is_refused_with_the_command(open_project, tmp_path):
    refused = open_project(tmp_path).call("init", "--template", "minimal")

    assert (refused.code, refused.err) == (2, "error: no folder. Run: learner init DIR --template minimal\n")


def test_packages_that_are_not_installed_are_reported_with_the_command(tmp_path):
    requirements = "# this package\nno-such-package>=1\npytest>=8\n"

    [line] = report_missing_packages(tmp_path, requirements)

    assert line.startswith("not installed: no-such-package>=1. Run: ")
    assert line.endswith(f" -m pip install -r {tmp_path}/requirements.txt")
    assert list(report_missing_packages(tmp_path, "# this package\npytest>=8\n")) == []


def find_started_stages(text):
    """Return the stages whose command DVC started, from its output *text*."""
    return re.findall(r"Running stage '(.*)'", text)


def kill_in_fit(project):
    """Run `dvc repro`, and kill it with all its child processes after the first checkpoint of fit."""
    process = project.start("dvc", "repro", log=os.devnull)
    wait_until(lambda: list(project.folder.glob(".runs/*/checkpoint/trainer-1.*")), process=process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "\n  fit:" not in (project.folder / "dvc.lock").read_text(), "killed too late"


@pytest.mark.long
@every_template
def test_killed_run_equals_an_uninterrupted_one_and_compares_with_an_experiment(
    new_project, open_project, tmp_path
):
    killed = new_project.copied_to(tmp_path / "killed")

    assert "fit" in find_started_stages(new_project.ok("make", "repro"))
    made = new_project.files(*OUTPUTS)
    assert re.search(r"\d passed", new_project.ok("make", "test"))
    assert find_started_stages(new_project.ok("make", "repro")) == []
    assert new_project.files(*OUTPUTS) == made

    kill_in_fit(killed)
    assert "resuming run" in killed.ok("dvc", "repro")
    assert killed.files(*OUTPUTS) == made

    new_project.ok("git", "add", "-A")
    new_project.ok("git", "commit", "-qm", "Train")
    new_project.ok("dvc", "exp", "run", "-n", "short", "-S", "fit.num_epochs=1")
    rows = new_project.call("compare", "HEAD", "short").out
    assert {"HEAD", "short"} <= {line.split()[0] for line in rows.splitlines() if line}
