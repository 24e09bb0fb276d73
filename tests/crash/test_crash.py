"""A few crash trials of small runs; ``make long`` runs some of all kinds, and ``make crash`` many."""

import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import crash
import pytest

SCRIPT = Path(__file__).with_name("crash.py")
TRIALS = {"writer_kills": 1, "calls": 1, "disk": 1, "corruption": 2, "stores": 1}
"""The parts whose runs are forks of the process of the tests, with the number of trials."""
PARTS = {
    "kills": "a signal at a random moment of dvc repro, learner run and dvc exp run --temp",
    "writer_kills": "a kill while a thread writes a checkpoint",
    "calls": "a kill, an error or a short write at a system call",
    "disk": "a full disk",
    "corruption": "a changed byte in a checkpoint",
    "concurrency": "two concurrent commands",
    "stores": "damage to a file of a run store",
    "damage": "damage to a file of store, cache or workspace before a command",
    "deletions": "a deletion while fit trains",
}
LONG_PARTS = {
    "stage_kills": "a kill of learner run, or of a stage under dvc repro",
    "command_calls": "an error at a system call of learner run or dvc repro",
    "caches": "a signal at a random moment, with a cache of links or on another file system",
    "ranks": "a kill of any process of a run on two ranks",
    "resumes": "a kill of learner resume",
    "experiments": "a kill of dvc exp run --temp in a checkout with uncommitted edits",
    "schedules": "a kill of learner serve and its run",
    "servers": "an outage of the Prefect server under learner run, serve and a worker",
    "sweeps": "a kill of learner sweep",
}


@pytest.mark.parametrize(("part", "count"), TRIALS.items())
def test_small_run_loses_no_progress_by(part, count, tmp_path, capsys):
    asked = SimpleNamespace(only=count, short=True, seed=7, jobs=1, replay=None, seconds=math.inf)

    findings = crash.report(part, asked, tmp_path)

    text = capsys.readouterr().out
    if text.startswith(f"{part}: skipped"):
        pytest.skip(text)
    assert findings == []
    assert re.search(rf"^all +{count} of {count}", text, re.MULTILINE), text


def run_series(folder, *arguments):
    """Run a short series; return a map from part to its table, and the complete output."""
    options = ["--short", "--jobs", "2", "--seed", "7", "--folder", folder]
    command = [sys.executable, SCRIPT, *arguments, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    tables = dict(re.findall(r"^(\w+): (.*?)\n\n", done.stdout, re.MULTILINE | re.DOTALL))
    return tables, done.stdout + done.stderr


@pytest.fixture(scope="module")
def short_series(tmp_path_factory):
    """Run the parts of a short series once; return their tables and the complete output."""
    return run_series(tmp_path_factory.mktemp("crash"))


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_no_progress_is_lost_by(part, short_series):
    assert_all_recovered(part, *short_series)


@pytest.mark.long
@pytest.mark.parametrize("part", LONG_PARTS)
def test_no_progress_is_lost_in_long_part_by(part, tmp_path):
    assert_all_recovered(part, *run_series(tmp_path, part, "--count", "2"))


def assert_all_recovered(part, tables, text):
    """Assert that every trial of *part* succeeded."""
    assert part in tables, text
    if tables[part].startswith("skipped"):
        pytest.skip(tables[part])
    succeeded, total = map(int, re.search(r"^all +(\d+) of (\d+)", tables[part], re.MULTILINE).groups())

    assert total >= 2
    assert succeeded == total, text
