"""The tests of a part without any mutant: what each one covers, and how long it takes."""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

HERE = Path(__file__).parent
CODE = ("stages", "pipeline")
CONFIG = """[run]
data_file = {folder}/coverage
context = ${{MUTANTS_TEST}}
include =
    */stages/*
    */pipeline/*
parallel = true
sigterm = true
disable_warnings = no-data-collected
"""


@dataclass(frozen=True)
class Baseline:
    """The results of the unmutated tests of some paths."""

    tests: dict
    """By test: ``seconds``, ``cpu`` and ``lines``, a list of line numbers by file."""
    failed: list
    """Tests that were skipped or failed without a mutant; they cannot kill one."""
    modules: list
    """Names of the modules that were loaded, in the order of their import."""

    def covering(self, mutant):
        """Return the tests that run the statement of *mutant*, the fastest first.

        Coverage sees neither what runs when a module is imported nor what a fork runs. If no test runs the
        statement, return those that run its file; outside of functions, all tests.
        """
        first, last = mutant.lines
        covered = {
            name: lines for name, row in self.tests.items() if (lines := row["lines"].get(mutant.file))
        }
        if mutant.function:
            exact = [name for name, lines in covered.items() if any(first <= line <= last for line in lines)]
            return sorted(exact or covered, key=self._speed)
        return sorted(self.tests, key=self._speed)

    def _speed(self, test):
        return self.tests[test]["cpu"], test


def baseline_of(paths, copies):
    """Return the `Baseline` of all tests in *paths*; measure it again if code or tests changed."""
    parts = [_measure_or_read(path, copies) for path in paths]
    return Baseline(
        {name: row for part in parts for name, row in part["tests"].items()},
        [name for part in parts for name in part["failed"]],
        list(dict.fromkeys(name for part in parts for name in part["modules"])),
    )


def _measure_or_read(path, copies):
    folder = copies.folder / "baseline" / path.replace("/", "-")
    stored, digest = folder / "baseline.json", copies.digest([path])
    if not stored.exists() or (content := json.loads(stored.read_text()))["digest"] != digest:
        sys.stdout.write(f"  measuring {path} without a mutant\n")
        sys.stdout.flush()
        content = measure(copies.path(0), path, folder) | {"digest": digest}
        stored.write_text(json.dumps(content))
    return content


def environment(copy):
    """Return the environment in which the tests of *copy* run."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (copy, HERE))),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy.parent / "hypothesis"),
    }


def measure(copy, path, folder):
    """Run the tests in *path* of *copy* and return the content of a `Baseline`; *folder* is for its files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "coveragerc").write_text(CONFIG.format(folder=folder))
    variables = {
        "COVERAGE_PROCESS_START": str(folder / "coveragerc"),
        "MUTANTS_RECORD": str(folder / "record.json"),
        "MUTANTS_TEST": "",
    }
    options = ["-p", "recorder_plugin", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
    with (folder / "output").open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, path],
            cwd=copy,
            env=environment(copy) | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if not (folder / "record.json").exists():
        raise SystemExit(f"the tests in {path} did not run: see {folder / 'output'}")
    record = json.loads((folder / "record.json").read_text())
    lines = _lines(copy, folder)
    tests = {name: row | {"lines": lines.get(name, {})} for name, row in record["tests"].items()}
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    for each in folder.glob("coverage.*"):
        each.unlink()
    return record | {"tests": tests}


def _lines(copy, folder):
    """Return the lines that each test ran, by test and file, in this process and in those that it started."""
    found = defaultdict(lambda: defaultdict(set))
    for path in folder.glob("coverage.*"):
        data = CoverageData(str(path))
        data.read()
        for name in data.measured_files():
            if file := _file(copy, name):
                for line, contexts in data.contexts_by_lineno(name).items():
                    for context in contexts:
                        found[context.strip("|")][file].add(line)
    return {
        test: {file: sorted(lines) for file, lines in files.items()} for test, files in found.items() if test
    }


def _file(copy, name):
    """Return *name*, which may be in a project that a test made, relative to its project, or None."""
    parts = Path(name).parts
    for index in range(len(parts) - 1, 0, -1):
        if parts[index] in CODE and (copy / Path(*parts[index:])).is_file():
            return str(Path(*parts[index:]))
    return None
