"""Each command as a real process: its exit code, both outputs, and the packages that it does not load.

Other tests run commands in the process of the test. The commands that run stages, and those of run stores,
records and remotes, have a test of their process beside their other tests.
"""

import re
import sys
from dataclasses import dataclass

import pytest
from long_tests import long
from templates import finished_template

USER_MODEL = """
class Net:
    def __init__(self, num_classes): ...
"""


@dataclass(frozen=True)
class Case:
    """A command, the regular expressions of its outputs, and the packages that it must not load."""

    command: str
    out: str
    err: str = ""
    code: int = 0
    not_loaded: tuple = ()
    edit: tuple = ("", "")


LIGHT = ("torch", "prefect")
CASES = [
    Case("--version", r"\d+\.\d+\.\d+\n", not_loaded=(*LIGHT, "dvc")),
    Case("--help", ".*Usage: .* check .* summary .*", not_loaded=(*LIGHT, "dvc", "pydantic")),
    Case("check", "params.yaml is valid\n", not_loaded=LIGHT),
    Case(
        "check",
        "dvc.yaml: an edit of my_net.py would not rerun build-learner; add to its deps:\n.*",
        "importing my_net:Net, as a run does; --no-import leaves this out\n",
        code=1,
        not_loaded=(*LIGHT, "my_net"),
        edit=("kind: cnn\n    hidden_size: 32\n    dropout: 0.5", "kind: my_net:Net"),
    ),
    Case("status", "create-artifact-dir .* up to date\n.*\nrun .*: finished, .*", not_loaded=LIGHT),
    Case("versions", "", "error: no stage in dvc.yaml has params in versions.yaml, .*\n", 2, LIGHT),
    Case("init", "minimal .*\nExample: learner init .*", not_loaded=LIGHT),
    Case("init own --template minimla", "", "error: there is no template 'minimla'. .*\n", 2, LIGHT),
    Case("stage create-artifact-dir", "", not_loaded=LIGHT),
    Case("serve --interval=inf", "", "error: --interval is inf. Set it to a finite number of seconds.*\n", 2),
    Case("serve --timeout=1e12", "", "error: --timeout is 1e.12. Set it to a finite number .*\n", 2),
    Case("summary", r".*\| Valid +\| Accuracy .*"),
    Case("data --count 3", "wrote samples.png: 3 samples of train in epoch 1\n"),
    Case("evaluate --source digits", r".*\| Test \(digits\) +\| Accuracy .*"),
    Case("lr-find --steps 20", ".*suggested learning rate: .*"),
]
LONG = ("summary", "data", "evaluate", "lr-find", "versions", "serve --timeout")
"""Commands that `test_cli.py` and `test_data.py` run in a fork, and those that import what another does."""


@pytest.fixture(scope="module")
def finished_project(home, tmp_path_factory):
    """Return a finished project with a module of the user."""
    project = finished_template(home).copied_to(tmp_path_factory.mktemp("processes") / "project")
    (project.folder / "my_net.py").write_text(USER_MODEL)
    return project


@pytest.fixture
def project(finished_project):
    """Return the project; its params are restored after the test."""
    path = finished_project.folder / "params.yaml"
    before = path.read_text()
    yield finished_project
    path.write_text(before)


@pytest.mark.parametrize(
    "case",
    [long(case) if case.command.startswith(LONG) or case.edit[0] else case for case in CASES],
    ids=lambda case: case.command,
)
def test_process_of_a_command(case, project):
    project.edit("params.yaml", *case.edit)
    options = ["-X", "importtime"] if case.not_loaded else []

    done = project.run(sys.executable, *options, "-m", "pipeline", *case.command.split())

    errors = re.sub("^import time: .*\n", "", done.err, flags=re.MULTILINE)
    assert done.code == case.code, done.text
    assert re.fullmatch(case.out, done.out, re.DOTALL), done.out
    assert re.fullmatch(case.err, errors, re.DOTALL), errors
    assert not done.imported & set(case.not_loaded)


CLOSED = 'exec "$0" "$@" <&- >&- 2>&-'


def test_command_with_closed_standard_streams_ends_as_with_open_ones(project):
    done = project.run("sh", "-c", CLOSED, sys.executable, "-m", "pipeline", "check", "--no-import")

    assert done.code == 0
