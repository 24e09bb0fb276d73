"""The ten tasks of the page for users of Lightning train, measure and resume."""

import importlib
import re
import sys

import pytest
from long_tests import long
from pages import ROOT

BENCHMARKS = ROOT / "benchmarks"
PAGE = ROOT / "stages/learner/from_lightning.md"
sys.path.append(str(BENCHMARKS))
TASKS = importlib.import_module("tasks")
SHORT = ("detection", "adversarial", "lora")
NAMES = [name if name in SHORT else long(name, id=name) for name in (task.__name__ for task in TASKS.TASKS)]


@pytest.mark.parametrize("name", NAMES)
def test_task_trains_two_epochs_and_a_second_call_finds_them(name, tmp_path):
    task = getattr(TASKS, name)
    task(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("epoch-*/*.log")}

    task(tmp_path)

    assert {path.parent.name for path in files} == {"epoch-1", "epoch-2"}
    assert {path.name for path in files} > {"Loss.log"} or name == "autoencoder"
    assert all(path.read_bytes() == content for path, content in files.items())


@pytest.mark.long  # the programs of Lightning, which is not a dependency
@pytest.mark.parametrize("name", [task.__name__ for task in TASKS.TASKS])
def test_task_trains_with_lightning(name, tmp_path):
    pytest.importorskip("lightning")
    program = importlib.import_module("tasks_lightning")

    assert getattr(program, name)(tmp_path)


def test_table_of_the_page_has_the_lines_of_the_programs():
    rows = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \|", PAGE.read_text(), re.MULTILINE)

    assert ["| {} | {} | {} |".format(*row) for row in rows] == TASKS.table().splitlines()
