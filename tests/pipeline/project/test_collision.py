"""A project whose package or module has the name of one of ours is refused."""

import shutil
import sys

import in_process
import pytest
from long_tests import cases, long
from pages import ROOT
from projects import Finished

MESSAGE = "learner-pipeline has a package of this name, and Python imports only one package of a name"
PROGRAMS = {
    "learner": ["learner", "check"],
    "stage in dvc.yaml of a new project": ["learner", "stage", "create-artifact-dir"],
    "stage in dvc.yaml of this repository": [
        sys.executable,
        "-m",
        "pipeline",
        "stage",
        "create-artifact-dir",
    ],
    "dvc repro": ["dvc", "repro", "create-artifact-dir"],
}
COMMANDS = [
    *("run", "status", "compare", "doctor", "serve", "evaluate", "versions"),
    *("sweep -S fit.seed=1,2 --dry-run", "resume HEAD --epoch 1", "init ."),
]
PLACES = {
    "package": "stages/__init__.py",
    "package without __init__.py": "stages/nets.py",
    "package in a package without __init__.py": "stages/models/nets.py",
    "module": "stages.py",
    "package pipeline": "pipeline/__init__.py",
    "module pipeline": "pipeline.py",
}


@pytest.fixture(scope="module")
def _new_project(tmp_path_factory, checked_out):
    """Return a project that `learner init` created."""
    folder = tmp_path_factory.mktemp("made")
    package = checked_out(folder / "package")
    package.call("init", str(folder / "own")).ok()
    return type(package)(folder / "own", package.environment["PREFECT_HOME"])


@pytest.fixture
def new_project(_new_project, tmp_path):
    return _new_project.copied_to(tmp_path / "own")


def write_module(project, place):
    """Write a module to *place*, and return the path of the module or of its top-level package."""
    path = project.folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("class Net: pass\n")
    return project.folder / path.relative_to(project.folder).parts[0]


def call_learner(project, *arguments):
    """Run the program ``learner``, which imports our packages, in this process."""
    return Finished(*in_process.call(arguments, project.folder, project.environment))


@pytest.mark.parametrize("program", [long(name) if name == "dvc repro" else name for name in PROGRAMS])
def test_every_program_reports_a_collision_in_one_message(program, new_project):
    path = write_module(new_project, "stages/__init__.py")

    assert_is_refused(new_project, path, new_project.run(*PROGRAMS[program]))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_a_collision_in_one_message(command, new_project):
    path = write_module(new_project, "stages/__init__.py")

    assert_is_refused(new_project, path, call_learner(new_project, *command.split()))


def assert_is_refused(project, path, refused):
    """Check that *refused*, the outcome of a command in *project*, reports the collision with *path*."""
    assert refused.code != 0
    assert f"{path}: {MESSAGE}" in refused.text
    assert refused.text.count(MESSAGE) == 1
    assert "ename your own, for example to my_stages" in refused.text
    assert "Traceback" not in refused.text
    assert not (project.folder / "artifacts").exists()


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_collision_is_found_with_every_kind_of_module_and_package(place, new_project):
    path = write_module(new_project, place)
    refused = [call_learner(new_project, "check")]
    if path.stem != "pipeline":  # python -m pipeline would start the user's own pipeline
        refused.append(new_project.call("check"))

    for each in refused:
        assert each.code == 2
        assert f"error: {path}: {MESSAGE}" in each.err


def test_folders_of_the_same_names_without_python_files_are_allowed(new_project):
    shutil.copy(ROOT / "params.yaml", new_project.folder)  # it names no part whose import takes a process
    for name in ("stages", "pipeline"):
        (new_project.folder / name).mkdir()
        (new_project.folder / name / "notes.txt").touch()

    assert call_learner(new_project, "check", "--no-import").ok() == "params.yaml is valid\n"
    assert new_project.call("check", "--no-import").ok() == "params.yaml is valid\n"


@pytest.mark.parametrize(
    "place", cases({name: [place] for name, place in PLACES.items()}, ["package", "module"])
)
def test_init_does_not_write_into_a_folder_with_a_collision(place, project, tmp_path):
    folder = tmp_path / "existing"
    path = write_module(type(project)(folder, project.environment["PREFECT_HOME"]), place)
    before = sorted(folder.rglob("*"))

    refused = project.call("init", str(folder))

    assert refused.code == 2
    assert f"error: {path}: {MESSAGE}" in refused.err
    assert sorted(folder.rglob("*")) == before


def test_package_on_pythonpath_that_hides_ours_is_reported(new_project, tmp_path):
    shutil.copytree(new_project.folder, tmp_path / "elsewhere")
    other = type(new_project)(tmp_path / "elsewhere", new_project.environment["PREFECT_HOME"])
    path = write_module(other, "stages/__init__.py")

    refused = new_project.run("learner", "check", PYTHONPATH=str(tmp_path / "elsewhere"))

    assert refused.code == 2
    assert refused.err.startswith(f"error: {path}: {MESSAGE}")


def test_names_are_not_checked_outside_a_project_and_for_help(new_project, tmp_path):
    write_module(new_project, "stages.py")
    (tmp_path / "stages.py").touch()

    assert "Usage" in call_learner(new_project, "check", "--help").ok()
    assert call_learner(new_project, "--version").ok()
    outside = type(new_project)(tmp_path, new_project.environment["PREFECT_HOME"])
    assert MESSAGE not in call_learner(outside, "summary").text
