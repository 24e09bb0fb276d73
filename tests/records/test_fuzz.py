"""A short run of the fuzzer; the long one is ``make fuzz``."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("fuzz.py")


def fuzz(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_corrupt_files_are_refused_or_load_correctly():
    done = fuzz("--count", "800", "--seed", "7")

    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert len(rows) == 8
    assert sum(int(row[1]) for row in rows) == 800
    assert all(int(row[2]) and int(row[3]) for row in rows), "files of every format are refused and loaded"


def test_single_corrupt_file_can_be_reproduced():
    first, again = (fuzz("--seed", "7", "--replay", "11") for _ in range(2))

    assert first.returncode == 0
    assert first.stdout.splitlines()[1].split()[:4] == again.stdout.splitlines()[1].split()[:4]
