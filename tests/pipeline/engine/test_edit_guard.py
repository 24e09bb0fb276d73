"""Dependencies that are edited during a stage are reported, and its outputs are not recorded."""

import os
import time

import pytest
from long_tests import long

from stages.load_data import VERSION

SOURCE = '''
import os
from pathlib import Path
from stages.data import Arrays, Digits, load_source

def load():
    """Return the digits, after the edits in the variable EDIT."""
    for edit in os.environ["EDIT"].split("\\n"):
        path, old, new = edit.split("|")
        Path(path).write_text(Path(path).read_text().replace(old, new))
    return load_source(Digits())
'''


BACKDATE_EDIT = """
import time
edit_and_load = load

def load():
    found = edit_and_load()
    os.utime("stages/models/config.py", (time.time() - 3600,) * 2)
    return found
"""


@pytest.fixture
def with_own_code(finished):
    """A finished project whose code differs from that of the tests, so that a fork imports it."""
    finished.edit("stages/__init__.py", '"""', '""" ')
    return finished


@pytest.fixture
def editing(with_own_code):
    """A finished project in which load-data is out of date, and edits files while it runs."""
    finished = with_own_code
    (finished.folder / "editing.py").write_text(SOURCE)
    finished.edit("params.yaml", "    kind: digits\n    path: null", '    kind: "editing:load"')
    finished.add_deps()
    return finished


COMMANDS = {
    "process of the stage": ("dvc", "repro", "load-data"),
    "process of the run": ("pipeline", "run", "load-data"),
}


EDITS = {
    "params.yaml: load_data.valid_fraction was 0.8 and is 0.7": (
        "params.yaml|valid_fraction: 0.8|valid_fraction: 0.7"
    ),
    f"stages/load_data.py: VERSION was '{VERSION}' and is '9{VERSION}'": (
        'stages/load_data.py|VERSION = "|VERSION = "9'
    ),
    "\n  stages/data/sources/built_in.py\n": 'stages/data/sources/built_in.py|"""|""" ',
}


# Two tests below have `learner run` detect an edit of the code.
@pytest.mark.parametrize("command", ["process of the stage", long("process of the run")])
def test_edit_during_a_stage_is_reported_and_not_recorded(editing, command):
    before = editing.files("data")

    done = editing.fork(*COMMANDS[command], EDIT="\n".join(EDITS.values()))

    assert done.code != 0
    assert all(message in done.err for message in EDITS)
    assert "Traceback" not in done.text
    assert editing.files("data") == before
    assert "load-data" in editing.dvc("status", "load-data").ok()


def test_edit_of_something_else_during_a_stage_has_no_effect(editing):
    of_another_stage = "params.yaml|num_epochs: 2|num_epochs: 3"
    no_version = "stages/load_data.py|import|import "
    same_content = "stages/data/sources/built_in.py|no such text|"

    edits = "\n".join([of_another_stage, no_version, same_content])
    editing.dvc("repro", "load-data", EDIT=edits).ok()

    assert "up to date" in editing.dvc("status", "load-data").ok()


def test_flow_does_not_run_code_that_was_edited_after_its_import(editing):
    edit = 'stages/build_learner.py|VERSION = "|VERSION = "9'

    done = editing.call("run", EDIT=edit)

    assert done.code == 1
    assert "build_learner.py: VERSION was changed after this process had loaded it" in done.err
    assert "load-data: ran" in done.out
    editing.call("run", "build-learner", EDIT=edit).ok()


@pytest.mark.parametrize("command", [long("process of the stage"), "process of the run"])
def test_sources_with_a_time_in_the_future_are_accepted(command, with_own_code):
    """Such times occur in files from another machine, or after the clock was set back."""
    for path in (with_own_code.folder / "stages").rglob("*.py"):
        os.utime(path, (time.time() + 86_400,) * 2)
    with_own_code.edit("params.yaml", "valid_fraction: 0.8", "valid_fraction: 0.75")

    with_own_code.fork(*COMMANDS[command]).ok()


def test_flow_detects_an_edited_source_despite_an_old_modification_time(editing):
    path = editing.folder / "editing.py"
    path.write_text(path.read_text() + BACKDATE_EDIT)
    edit = 'stages/models/config.py|"""|""" '

    done = editing.call("run", EDIT=edit)

    assert done.code == 1
    assert "stages/models/config.py was changed after this process had loaded it" in done.err
