"""A short series of the trials; the long one is ``make crash``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("crash.py")
PARTS = {
    "kills": "a signal at a random moment of dvc repro, learner run and dvc exp run --temp",
    "calls": "a kill, an error or a short write at a system call",
    "disk": "a full disk",
    "spoilt": "a byte of a checkpoint that is not as it was written",
    "rivals": "two commands at once",
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """What the trials of each part came to, and all that was said."""
    folder = tmp_path_factory.mktemp("crash")
    command = [sys.executable, SCRIPT, "--short", "--jobs", "2", "--seed", "7", "--folder", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = dict(re.findall(r"^(\w+): (.*?)\n\n", done.stdout, re.MULTILINE | re.DOTALL))
    return said, done.stdout + done.stderr


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_lost_by(part, trials):
    said, text = trials
    assert part in said, text
    if said[part].startswith("skipped"):
        pytest.skip(said[part])
    well, of = map(int, re.search(r"^all +(\d+) of (\d+)", said[part], re.MULTILINE).groups())

    assert of >= 2
    assert well == of, text
