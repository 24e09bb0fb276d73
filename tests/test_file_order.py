"""On several workers the longest test files start first, and a seed shuffles them."""

import json
import os
import subprocess
import sys

import file_order
import pytest

CONFTEST = """
import pathlib, file_order
file_order.ROOT = pathlib.Path(__file__).parent
file_order.DURATIONS = file_order.ROOT / "durations.json"
file_order.USE_THE_SERVER = ("test_long", "test_short")
pytest_plugins = ["file_order"]
"""
FILE = "def test_b():\n    pass\n\ndef test_a():\n    pass\n"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs three files with pytest, and returns the line of each test in order."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("long", "new", "short"):
        (tmp_path / f"test_{name}.py").write_text(FILE)
    (tmp_path / "durations.json").write_text('{"test_short.py": 1, "test_long.py": 9, "removed.py": 3}')
    environment = os.environ | {
        "PYTHONPATH": str(file_order.ROOT / "tests/shared"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # each process would import the plugins of all packages
    }

    def run_pytest(*options):
        plugins = ["-p", "xdist.plugin", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-v", *plugins, "--rootdir", ".", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if "PASSED" in line]

    return run_pytest


def names(lines):
    """Return the files and names of the tests of *lines*."""
    return [word.replace("test_", "") for line in lines for word in line.split() if "::" in word]


def test_longest_files_start_first_on_workers_and_their_durations_are_stored(run, tmp_path):
    """A file without a duration is the first; one that was removed has no duration afterwards."""
    order = names(run("--numprocesses", "1", "--dist", "loadfile", "--store-durations"))

    stored = json.loads((tmp_path / "durations.json").read_text())
    assert stored.keys() == {"test_long.py", "test_new.py", "test_short.py"}
    assert all(seconds < 1 for seconds in stored.values())
    assert order == ["new.py::b", "new.py::a", "long.py::b", "long.py::a", "short.py::b", "short.py::a"]


def test_seed_determines_the_order_of_the_files_and_the_tests_of_a_file_stay_together(run):
    orders = [names(run("--shuffle", seed)) for seed in ("1", "4")]

    assert orders[0] == ["new.py::b", "new.py::a", "short.py::b", "short.py::a", "long.py::b", "long.py::a"]
    assert orders[1] == ["short.py::b", "short.py::a", "new.py::b", "new.py::a", "long.py::b", "long.py::a"]


def test_files_that_use_the_server_run_on_the_same_worker(run):
    lines = run("--numprocesses", "2", "--dist", "loadfile")

    workers = {each: [line.split()[0] for line in lines if each in line] for each in ("long", "new", "short")}
    assert {*workers["long"]} == {*workers["short"]} != {*workers["new"]}
