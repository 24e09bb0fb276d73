"""Planted changes: the stages that depend on a change run again, no others, and the reason is named.

A project of one batch has a source, a model and a metric. Each adds up constants from all that a module can
read: modules at any distance, files inside and outside of the project, params. A change of one constant
changes the outputs. Every change is tried with each entry, and then taken back, which must restore dvc.lock.
Run ``python tests/planted/planted.py`` for the table.
"""

import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from projects import Project
from waiting import wait_until

ENTRIES = ("learner run", "dvc repro")
ALL = ("load-data", "build-learner", "fit", "save-model")
RERUN = {"source": ALL, "model": ALL[1:], "metric": ALL[2:]}
"""The stages that run again after a change of the part, in order; the first depends on it directly."""
NAMES = {
    "module in params": "lab/{}.py",
    "imported module": "lab/{}_near.py",
    "module two imports away": "lab/{}_far.py",
    "module imported in a function": "lab/{}_lazy.py",
    "module whose name is computed": "lab/{}_computed.py",
    "relative import": "lab/{}_relative.py",
    "module of a namespace package": "plain/{}.py",
    "module imported under a condition": "lab/{}_condition.py",
    "package": "lab/{}_parts/__init__.py",
    "file read by an import": "lab/{}.json",
    "file read in a function": "lab/{}.csv",
    "file read without Python": "lab/{}.dat",
    "file outside of the project": "../outside/{}.txt",
    "pretrained file in params": "lab/{}.weights",
}
PARAMS = {
    "load_data.source.shift": ("shift: 1  # source", "shift: 2  # source", "load-data", ALL),
    "load_data.seed": ("seed: 41", "seed: 43", "load-data", ALL),
    "load_data.valid_fraction": ("valid_fraction: 0.2", "valid_fraction: 0.3", "load-data", ALL),
    "build_learner.model.shift": ("shift: 1  # model", "shift: 2  # model", "build-learner", ALL[1:]),
    "build_learner.seed": ("seed: 42", "seed: 44", "build-learner", ALL[1:]),
    "build_learner.optimizer.learning_rate": ("rate: 0.01", "rate: 0.02", "build-learner", ALL[1:]),
    "fit.metrics": ("shift: 1  # metric", "shift: 2  # metric", "fit", ALL[2:]),
    "fit.batch_size": ("batch_size: 32", "batch_size: 16", "fit", ALL[2:]),
    "fit.num_epochs": ("num_epochs: 1", "num_epochs: 2", "fit", ALL[2:]),
    "save_model.recorder": ("recorder: default", "recorder: compact", "save-model", ALL[3:]),
}
"""By the name of a param: the old and the new text, the stage that reads it, and all that run again."""
NEEDLESS = {
    "comment in dvc.yaml": ("dvc.yaml", "stages:\n", "stages:  # five\n"),
    "comment in params.yaml": ("params.yaml", "fit:\n", "fit:  # training\n"),
    "form of a number": ("params.yaml", "rate: 0.01", "rate: 1e-2"),
    "order of keys": ("params.yaml", "batch_size: 32\n  seed: 42", "seed: 42\n  batch_size: 32"),
    "README": ("README.md", "#", "# A"),
    "requirements": ("requirements.txt", "#", "# A"),
    "test of the project": ("test_project.py", "import", "import os\nimport"),
    "module without an import": ("unused.py", "1", "2"),
    "data that nobody reads": ("unused.csv", "1", "2"),
    "same content": ("lab/source.py", "1", "1"),
    "ignored file": ("unused.log", "1", "2"),
    "plots in dvc.yaml": ("dvc.yaml", "template: confusion_counts", "template: confusion"),
}
PART = '''
"""The {part} of the project."""

import importlib
import json
import subprocess
from pathlib import Path

import plain.{part}
from lab.{part}_near import NEAR
from . import {part}_relative
import lab.{part}_parts

OWN = 1
AT_IMPORT = json.loads(Path("lab/{part}.json").read_text())
if OWN:
    from lab.{part}_condition import VALUE as CONDITION

def total(path, shift):
    """Return the sum of the constants."""
    from lab import {part}_lazy
    computed = importlib.import_module("lab." + "{part}_computed")
    modules = (plain.{part}, {part}_relative, lab.{part}_parts, {part}_lazy, computed)
    files = (path, "lab/{part}.csv", "../outside/{part}.txt")
    read = sum(float(Path(name).read_text()) for name in files)
    read += float(subprocess.run(["cat", "lab/{part}.dat"], capture_output=True).stdout)
    return sum(module.VALUE for module in modules) + OWN + NEAR + CONDITION + AT_IMPORT + read + shift
'''
PARTS = {
    "source": """
import numpy as np
from stages.data import Arrays

def load(path, shift):
    inputs = np.random.default_rng(1).normal(size=(40, 2)) + total(path, shift)
    return Arrays(inputs.astype(np.float32), np.arange(40) % 2)
""",
    "model": """
from torch import nn
from stages.models import ClassificationStep

class Net(ClassificationStep, nn.Sequential):
    def __init__(self, path, shift):
        super().__init__(nn.Flatten(), nn.Linear(2, 2))
        nn.init.constant_(self[1].bias, total(path, shift) / 100)
""",
    "metric": """
from stages.metrics import Mean

class Planted:
    name, unit = "Planted", None

    def __init__(self, path, shift):
        self.value = total(path, shift)

    def measure(self, output):
        return Mean(0 * output.loss.sum() + self.value * output.size, output.size)
""",
}
TEXTS = {
    "near": "from lab.{0}_far import FAR\nVALUE = 1\nNEAR = FAR + VALUE\n",
    "far": "VALUE = 1\nFAR = VALUE\n",
}
CONFIG = """
create_artifact_dir: {keep: []}
load_data:
  source:
    kind: "lab.source:load"
    path: lab/source.weights
    shift: 1  # source
  valid_fraction: 0.2
  test_fraction: 0.2
  seed: 41
build_learner:
  seed: 42
  model:
    kind: "lab.model:Net"
    path: lab/model.weights
    shift: 1  # model
  optimizer:
    kind: adam
    learning_rate: 0.01
fit:
  num_epochs: 1
  batch_size: 32
  seed: 42
  num_threads: 1
  metrics:
  - loss
  - accuracy
  - kind: "lab.metric:Planted"
    path: lab/metric.weights
    shift: 1  # metric
save_model:
  recorder: default
"""


@dataclass(frozen=True)
class Change:
    """A change of a file, the stage whose reason must name it, and the stages that must run again."""

    kind: str
    entry: str
    file: str
    old: str
    new: str
    stage: str = ""
    reason: str = ""
    rerun: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.entry}: {self.kind} ({self.file})"


@dataclass
class Result:
    """What the changes have shown."""

    tried: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def fails(self, change):
        """Return whether *change* has a problem."""
        return any(problem.startswith(f"{change}: ") for problem in self.problems)


def plan():
    """Return all changes by entry: files of each part, params, versions, and changes without an effect."""
    return [change for entry in ENTRIES for change in (*_plan_files(entry), *_plan_values(entry))]


def _plan_files(entry):
    for part, rerun in RERUN.items():
        for kind, name in NAMES.items():
            file = name.format(part)
            is_module = file.endswith(".py")
            old, new = ("OWN = 1", "OWN = 2") if kind == "module in params" else ("VALUE = 1", "VALUE = 2")
            reason = file.removeprefix("../") if is_module else file.rpartition("/")[2]
            texts = (old, new) if is_module else ("1", "2")
            yield Change(kind, entry, file, *texts, rerun[0], reason, rerun)


def _plan_values(entry):
    for name, (old, new, stage, rerun) in PARAMS.items():
        yield Change("param", entry, "params.yaml", old, new, stage, name, ("create-artifact-dir", *rerun))
    for kind, (file, old, new) in NEEDLESS.items():
        yield Change(f"no effect: {kind}", entry, file, old, new)
    for stage in ("create-artifact-dir", *ALL):
        name = stage.replace("-", "_")
        yield Change("version", entry, "dvc.lock", f"{name}: '", f"{name}: '0", stage, name, (stage,))


class PlantedProject(Project):
    """The project of the changes, whose deps `learner check --fix` has completed."""

    def prepare(self):
        """Create the project, and run it until `learner check --fix` finds no further dependency."""
        self.folder.mkdir()
        self.call("init", ".").ok()
        self._write()
        rounds = 0
        while (done := self.call("run")).code:
            assert "Run `learner check --fix`" in done.err, done.text
            fixed = self.call("check", "--no-import", "--fix")
            assert "added" in fixed.out, fixed.text
            rounds += 1
        assert rounds <= len(ALL) + 1, rounds
        self.ok("git", "add", "-A")
        self.ok("git", "commit", "-qm", "The project")

    def _write(self):
        texts = {name.format(part): "VALUE = 1\n" for part in RERUN for name in NAMES.values()}
        texts = {name: text if name.endswith(".py") else "1" for name, text in texts.items()}
        for part, code in PARTS.items():
            texts[f"lab/{part}.py"] = PART.format(part=part) + code
            texts |= {f"lab/{part}_{name}.py": text.format(part) for name, text in TEXTS.items()}
        texts |= {"params.yaml": CONFIG, "unused.py": "x = 1", "unused.csv": "1", "unused.log": "1"}
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.edit("dvc.yaml", "      - source.py\n", "      - lab/source.py\n")
        self.edit("dvc.yaml", "      - model.py\n", "      - lab/model.py\n")

    def start_entry(self, entry):
        """Run *entry*, and return its output and the outcome of each stage that was not unchanged."""
        program, *arguments = entry.split()
        done = self.call(*arguments) if program == "learner" else self.dvc(*arguments)
        watchdogs = self.folder / ".runs"
        wait_until(lambda: not list(watchdogs.glob("watchdog-*")))  # they would restore an edited dvc.lock
        outcomes = dict(re.findall(r"^(\S+): (ran|restored)", done.out, re.MULTILINE))
        for stage in re.findall(r"^Running stage '(\S+)'", done.text, re.MULTILINE):
            outcomes[stage] = "ran"
        for stage in re.findall(r"^Stage '(\S+)' is cached", done.text, re.MULTILINE):
            outcomes[stage] = "restored"
        return done, outcomes


def try_change(project, change, result):
    """Make *change*, compare reasons and outcomes with the expected ones, and take it back."""
    result.tried[change.kind] += 1
    lock, path = project.folder / "dvc.lock", project.folder / change.file
    before, text = lock.read_bytes(), path.read_text()
    path.write_text(text.replace(change.old, change.new, 1))
    assert change.old == change.new or path.read_text() != text, change
    problems = list(_find_problems(project, change))
    is_version = change.file == "dvc.lock"  # it is that of a run of an earlier version of the stage
    if not is_version and (lock.read_bytes() != before) != bool(change.rerun):
        problems.append("dvc.lock changed" if not change.rerun else "dvc.lock did not change")
    if not is_version and change.rerun:
        result.tried[f"{change.kind}, taken back"] += 1
        path.write_text(text)
        done, _ = project.start_entry(change.entry)
        if done.code:
            problems.append(f"taken back: {done.text[-2000:]}")
    path.write_text(text)
    if lock.read_bytes() != before:
        problems.append("dvc.lock differs from the one before the change")
    result.problems += [f"{change}: {problem}" for problem in problems]


def _find_problems(project, change):
    """Yield what is wrong with the reason and the outcomes of *change*, which was made."""
    why = project.call("status", "--why", change.stage).out if change.stage else ""
    if change.reason not in why:
        yield f"status --why {change.stage}: {why}"
    done, outcomes = project.start_entry(change.entry)
    if done.code or tuple(outcomes) != change.rerun:
        yield f"ran {outcomes}, not {change.rerun}: {done.text[-2000:]}"
    line = re.search(rf"^{change.stage} is out of date: .*$", done.out, re.MULTILINE)
    if change.entry == "learner run" and change.reason not in (line or [""])[0]:
        yield f"the reason is not printed: {done.out}"


def try_all(folder, home, changes):
    """Try *changes* in a project in *folder*, and return the result."""
    (Path(folder) / "outside").mkdir()
    project, result = PlantedProject(Path(folder) / "project", home), Result()
    project.prepare()
    for change in changes:
        try_change(project, change, result)
        sys.stdout.write(f"{'failed' if result.fails(change) else 'ok'} {change}\n")
        sys.stdout.flush()
    return result


def main():
    """Try all changes, or those whose text contains an argument, and print a table."""
    changes = [change for change in plan() if all(word in str(change) for word in sys.argv[1:])]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = try_all(folder, Path(folder) / "home", changes)
    lines = [
        f"| {kind} | {count} | {sum(f': {kind} (' in problem for problem in result.problems)} |"
        for kind, count in result.tried.items()
    ]
    seconds = time.monotonic() - started
    total = f"{result.tried.total()} changes in {seconds:.0f} s, {len(result.problems)} problems"
    sys.stdout.write("\n".join([*lines, *result.problems, total, ""]))
    return bool(result.problems)


if __name__ == "__main__":
    sys.exit(main())
