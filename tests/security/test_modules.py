"""No command that reads imports a module of the current folder, whatever its name."""

import os
import pty
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from hostile import World
from long_tests import long

from stages.contracts import plugins
from stages.contracts.errors import PluginError
from stages.system.processes import program_command

ROOT = Path(__file__).parents[2]
OWN = {"pipeline", "stages", "tests", "benchmarks"}
LIST_FIRST = "import runpy, sys; print(*{name.partition('.')[0] for name in sys.modules})"
"""Program that prints what ``python -m`` imports before it runs any module."""
COMMANDS = {
    "version": ("learner", "--version"),
    "help": ("learner", "--help"),
    "check": ("learner", "check", "--no-import"),
    "status": ("learner", "status"),
    "compare": ("learner", "compare"),
    "init": ("learner", "init", "."),
}


@cache
def list_modules():
    """Return the names of the modules of Python, and of all packages that are installed."""
    own = {"model", "sitecustomize", "usercustomize"}
    return sorted({*sys.stdlib_module_names, *packages_distributions(), *own} - OWN)


def clone_with_modules(project, folder, names):
    """Return a clone of *project* with a module of each of *names*, which leaves a mark if it is imported."""
    folder.mkdir()
    world = World(folder)
    world.remote = project.remote
    world.git("clone", "--quiet", str(project.origin), str(world.origin), folder=folder)
    for number, name in enumerate(names):
        world.write(f"{name}/__init__.py" if number % 2 else f"{name}.py", world.program(name))
    points = "[stages.models]\nevil = csv:Net\n[fsspec.specs]\ns3 = csv:Net\n"
    world.write("evil-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    world.write("evil-1.dist-info/entry_points.txt", points)
    return world.deliver()


@pytest.fixture(scope="module")
def shadow_world(base_project, tmp_path_factory):
    """Return a clone of a repository whose modules have the names of all modules of Python and packages."""
    return clone_with_modules(base_project, tmp_path_factory.mktemp("shadows") / "world", list_modules())


LONG = ("version", "help", "check")
"""Commands that import what another one imports too."""


@pytest.mark.parametrize("name", [long(name) if name in LONG else name for name in COMMANDS])
def test_command_imports_nothing_of_the_current_folder(shadow_world, name):
    done = shadow_world.run(*COMMANDS[name])

    assert not shadow_world.marker.exists(), shadow_world.marker.read_text()
    assert done.code in (0, 1, 2)
    assert "Traceback" not in done.text


def test_python_m_imports_nothing_of_the_current_folder_but_what_python_does(base_project, tmp_path):
    """``python -m`` searches the current folder first until our code runs; `learner` never does."""
    command = [sys.executable, "-c", LIST_FIRST]
    first = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()
    world = clone_with_modules(base_project, tmp_path / "world", sorted({*list_modules()} - {*first}))

    done = world.run(sys.executable, "-m", "pipeline", "status")

    assert not world.marker.exists(), world.marker.read_text()
    assert done.code == 0, done.text


def test_completion_in_a_terminal_imports_nothing_of_the_current_folder(shadow_world):
    variables = {"_LEARNER_COMPLETE": "complete_bash", "COMP_WORDS": "learner comp", "COMP_CWORD": "1"}
    controller, terminal = pty.openpty()
    options = {"cwd": shadow_world.clone, "env": shadow_world.environment | variables}
    with subprocess.Popen(
        ["learner"], stdin=terminal, stdout=terminal, stderr=terminal, **options
    ) as process:
        os.close(terminal)
        shown = read_terminal(controller)
    os.close(controller)

    assert "compare" in shown
    assert process.returncode == 0
    assert not shadow_world.marker.exists(), shadow_world.marker.read_text()


def read_terminal(controller):
    """Return everything that the processes in a terminal write until they end."""
    shown = b""
    while True:
        try:
            part = os.read(controller, 1 << 16)
        except OSError:  # Linux reports the end of a terminal as an error
            part = b""
        if not part:
            return shown.decode()
        shown += part


def test_module_of_the_project_imports_installed_modules(tmp_path, monkeypatch):
    (tmp_path / "part_with_import.py").write_text("import tabnanny\nclass Net: pass\n")
    (tmp_path / "tabnanny.py").write_text("raise SystemExit('imported from the folder of the project')\n")
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    monkeypatch.chdir(tmp_path)

    plugins.find("model", "part_with_import:Net", {})

    assert "tabnanny" in sys.modules


@pytest.mark.long  # the test before
def test_part_of_the_project_is_found_after_installed_modules(world):
    """The model of the project is imported, and no module of its folder takes the name of another."""
    world.write("csv.py", world.program("csv"))
    world.write("model.py", world.program("model") + "import csv, sys\nclass DigitNet: pass\n")
    world.deliver()

    done = world.run("learner", "check")

    assert "importing model:DigitNet, as a run does; --no-import leaves this out" in done.err
    assert world.marker.read_text().split() == ["model"]


def test_part_in_a_module_that_an_installed_one_hides_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "csv.py").write_text("class Net: pass\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(PluginError, match="csv.py is not imported. Rename your module"):
        plugins.find("model", "csv:DictReader", {})


@pytest.mark.long  # the test before
def test_module_that_an_installed_one_hides_is_reported(world):
    params = (world.origin / "params.yaml").read_text()
    world.write("params.yaml", params.replace("model:DigitNet", "csv:Net"))
    world.write("csv.py", "class Net: pass\n")
    world.deliver()

    done = world.run("learner", "check")

    assert done.code == 2
    assert "csv.py is not imported. Rename your module" in done.err.replace("\n", " "), done.text


def test_started_processes_import_nothing_of_the_current_folder(shadow_world):
    """`learner doctor`, a sweep and the ranks of a run start them, all with one function."""
    done = shadow_world.run(
        *program_command("import csv, json, stages.contracts.text; print(sys.argv[1:])", "x")
    )

    assert (done.code, done.out) == (0, "['x']\n"), done.text
    assert not shadow_world.marker.exists(), shadow_world.marker.read_text()


def test_only_one_module_builds_commands_of_the_interpreter():
    texts = {
        path: path.read_text()
        for package in ("pipeline", "stages")
        for path in (ROOT / package).rglob("*.py")
    }
    found = [path.name for path, text in texts.items() if re.search(r"sys\.executable,\s*\"", text)]

    assert found == ["processes.py"]
