"""A project whose package or module has the name of one of ours is refused."""

import shutil
import sys

import pytest

MESSAGE = "learner-pipeline has a package of this name, and Python imports only one package of a name"
COMMANDS = {
    "check": ["learner", "check"],
    "run": ["learner", "run"],
    "status": ["learner", "status"],
    "compare": ["learner", "compare"],
    "doctor": ["learner", "doctor"],
    "sweep": ["learner", "sweep", "-S", "fit.seed=1,2", "--dry-run"],
    "resume": ["learner", "resume", "HEAD", "--epoch", "1"],
    "serve": ["learner", "serve"],
    "evaluate": ["learner", "evaluate"],
    "versions": ["learner", "versions"],
    "init": ["learner", "init", "."],
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
    initialized = package.learner("init", str(folder / "own"))
    assert initialized.code == 0, initialized.text
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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_a_collision_in_one_message(command, new_project):
    path = write_module(new_project, "stages/__init__.py")

    refused = new_project.run(*COMMANDS[command])

    assert refused.code != 0
    assert f"{path}: {MESSAGE}" in refused.text
    assert refused.text.count(MESSAGE) == 1
    assert "ename your own, for example to my_stages" in refused.text
    assert "Traceback" not in refused.text
    assert not (new_project.folder / "artifacts").exists()


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_collision_is_found_with_every_kind_of_module_and_package(place, new_project):
    path = write_module(new_project, place)
    programs = [["learner"], [sys.executable, "-m", "pipeline"]]

    if path.stem == "pipeline":  # python -m pipeline would start the user's own pipeline
        programs = programs[:1]

    for program in programs:
        refused = new_project.run(*program, "check")

        assert refused.code == 2
        assert f"error: {path}: {MESSAGE}" in refused.err


@pytest.mark.parametrize("name", ["stages", "pipeline"])
def test_folder_of_the_same_name_without_python_files_is_allowed(name, new_project):
    (new_project.folder / name).mkdir()
    (new_project.folder / name / "notes.txt").touch()

    assert new_project.ok("learner", "check") == "params.yaml is valid\n"
    assert new_project.ok(sys.executable, "-m", "pipeline", "check") == "params.yaml is valid\n"


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_init_does_not_write_into_a_folder_with_a_collision(place, project, tmp_path):
    folder = tmp_path / "existing"
    path = write_module(type(project)(folder, project.environment["PREFECT_HOME"]), place)
    before = sorted(folder.rglob("*"))

    refused = project.learner("init", str(folder))

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

    assert "Usage" in new_project.ok("learner", "check", "--help")
    assert new_project.ok("learner", "--version")
    outside = type(new_project)(tmp_path, new_project.environment["PREFECT_HOME"])
    assert MESSAGE not in outside.run("learner", "summary").text
