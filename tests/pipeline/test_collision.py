"""A user's project with a package or module that has the name of one of ours."""

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
    "stage of the project's dvc.yaml": ["learner", "stage", "create-artifact-dir"],
    "stage of our dvc.yaml": [sys.executable, "-m", "pipeline", "stage", "create-artifact-dir"],
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
def _made(tmp_path_factory, checked_out):
    """A project that `learner init` made."""
    folder = tmp_path_factory.mktemp("made")
    package = checked_out(folder / "package")
    made = package.learner("init", str(folder / "own"))
    assert made.code == 0, made.text
    return type(package)(folder / "own", package.environment["PREFECT_HOME"])


@pytest.fixture
def own(_made, tmp_path):
    return _made.copied_to(tmp_path / "own")


def put(project, place):
    path = project.folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("class Net: pass\n")
    return project.folder / path.relative_to(project.folder).parts[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_a_collision_in_one_message(command, own):
    path = put(own, "stages/__init__.py")

    refused = own.run(*COMMANDS[command])

    assert refused.code != 0
    assert f"{path}: {MESSAGE}" in refused.text
    assert refused.text.count(MESSAGE) == 1
    assert "ename your own, for example to my_stages" in refused.text
    assert "Traceback" not in refused.text
    assert not (own.folder / "artifacts").exists()


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_collision_is_found_in_each_form_that_python_imports(place, own):
    path = put(own, place)
    programs = [["learner"], [sys.executable, "-m", "pipeline"]]

    for program in programs[: 1 if path.stem == "pipeline" else 2]:  # else Python starts the user's pipeline
        refused = own.run(*program, "check")

        assert refused.code == 2
        assert f"error: {path}: {MESSAGE}" in refused.err


@pytest.mark.parametrize("name", ["stages", "pipeline"])
def test_folder_of_that_name_without_python_files_is_allowed(name, own):
    (own.folder / name).mkdir()
    (own.folder / name / "notes.txt").touch()

    assert own.ok("learner", "check") == "params.yaml is valid\n"
    assert own.ok(sys.executable, "-m", "pipeline", "check") == "params.yaml is valid\n"


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_init_writes_nothing_into_a_folder_with_a_collision(place, project, tmp_path):
    folder = tmp_path / "existing"
    path = put(type(project)(folder, project.environment["PREFECT_HOME"]), place)
    before = sorted(folder.rglob("*"))

    refused = project.learner("init", str(folder))

    assert refused.code == 2
    assert f"error: {path}: {MESSAGE}" in refused.err
    assert sorted(folder.rglob("*")) == before


def test_package_on_pythonpath_that_hides_ours_is_reported(own, tmp_path):
    shutil.copytree(own.folder, tmp_path / "elsewhere")
    path = put(type(own)(tmp_path / "elsewhere", own.environment["PREFECT_HOME"]), "stages/__init__.py")

    refused = own.run("learner", "check", PYTHONPATH=str(tmp_path / "elsewhere"))

    assert refused.code == 2
    assert refused.err.startswith(f"error: {path}: {MESSAGE}")


def test_names_are_not_checked_outside_a_project_and_for_help(own, tmp_path):
    put(own, "stages.py")
    (tmp_path / "stages.py").touch()

    assert "Usage" in own.ok("learner", "check", "--help")
    assert own.ok("learner", "--version")
    assert MESSAGE not in type(own)(tmp_path, own.environment["PREFECT_HOME"]).run("learner", "summary").text
