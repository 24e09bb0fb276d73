"""The projects of the trials: built once, copied for each trial, and compared with an untouched run."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from templates import fresh
from waiting import LIMIT_SECONDS

from pipeline.project.lockfile import is_intact_lockfile, is_intact_rwlock
from stages.runs.layout import HEARTBEAT_FILE, RUNS_FOLDER, stores

MARK = "CRASH_TRIAL"
TELEMETRY = "artifacts/telemetry/"
DVC_PART = re.compile(r"^\.dvc/cache/.*/\.[^/]*\.tmp$")
"""A partial copy of a killed DVC in its cache, which DVC ignores and keeps."""
TEMP, RESUME, TORCHRUN = "dvc exp run --temp", "learner resume", "torchrun"
COMMANDS = {
    "dvc repro": ("dvc", "repro"),
    "learner run": (sys.executable, "-m", "pipeline", "run"),
    TEMP: ("dvc", "exp", "run", "--temp"),
    RESUME: (sys.executable, "-m", "pipeline", "resume", "HEAD", "--epoch", "2"),
    TORCHRUN: ("torchrun", "--standalone", "--nproc-per-node", "2", "-m", "pipeline", "stage", "fit"),
}
PARAMS = (
    ("num_epochs: 20", "num_epochs: 3\n  checkpoint_every_steps: 3"),
    ("kind: cnn\n    dropout: 0.5", "kind: mlp\n    hidden_sizes: [16]\n    dropout: 0.3"),
    ("kind: constant", "kind: cosine\n    num_iters: 100"),
    ("batches: 1", "batches: 3"),
)


TWO_RANKS = (("device: auto", "device: [cpu, cpu]"),)


@functools.cache
def templates(folder, *params):
    """Return the templates in *folder* with *params* besides `PARAMS`, built at the first call."""
    return Templates(Path(tempfile.mkdtemp(prefix="templates-", dir=folder)), params)


class Templates:
    """The projects with which trials start, and the results that they must give."""

    def __init__(self, folder, params=()):
        self.folder = folder
        home = folder / "prefect"
        home.mkdir(parents=True)
        self.empty = TrialProject(fresh(folder / "empty", home))
        for old, new in (*PARAMS, *params):
            self.empty.project.edit("params.yaml", old, new)
        self.empty.ok("git", "commit", "-qam", "A short run")
        self.training = self.empty.copied_to(folder / "training")
        self.training.ok("dvc", "repro", "build-learner")
        self.training.ok("git", "add", "-A")
        self.training.ok("git", "commit", "-qm", "All but the training")
        self.done = self.training.copied_to(folder / "done")
        """A finished project."""
        begun = time.monotonic()
        self.done.ok("dvc", "repro")
        self.seconds = time.monotonic() - begun
        """The seconds that an untouched `dvc repro` of the training takes."""
        self.reference = self.done.result()
        """The files that every trial must produce."""
        self.results = {name: getattr(self, name).result() for name in ("empty", "training")}

    @functools.cached_property
    def other(self):
        """A project with two finished runs: that of ``done``, and one with another seed of the training."""
        project = self.done.copied_to(self.folder / "other")
        set_seed(project, 42, 43)
        project.ok("dvc", "repro")
        return project

    def start(self, name, folder, prefix=None):
        """Return a new project: with no stage run (``empty``), or with all but the ``training``."""
        return getattr(self, name).copied_to(folder, prefix)

    def wrong(self, project, command, start):
        """Return how *project* differs from the reference after *command*; empty if it does not."""
        if command == TEMP:
            cached = {name: data for name, data in self.reference.items() if name.startswith(".dvc/")}
            wrong = difference(project.result(), self.results[start] | cached)
            same = set(project.experiments()) == {self.reference["dvc.lock"]}
            return wrong or ("" if same else "the dvc.lock of the experiment differs")
        writers = json.loads((project.folder / ".dvc/tmp/rwlock").read_text()).get("write")
        wrong = difference(project.result(), self.reference)
        return wrong or (f"the rwlock of DVC still lists the writers {writers}" if writers else "")


class TrialProject:
    """A project in which a trial runs commands."""

    def __init__(self, project, prefix=None):
        self.project = project
        self.prefix = str(prefix or project.folder)
        """The prefix of the paths outside the project: the output of commands, and DVC's site cache."""
        self.folder = project.folder
        self.folders = [project.folder, Path(f"{self.prefix}-site")]
        """The folders of the trial, which `remove` removes."""
        self.environment = project.environment | {
            MARK: str(self.folder),
            "DVC_SITE_CACHE_DIR": f"{self.prefix}-site",
            "PYTHONPATH": str(self.folder),
        }

    def copied_to(self, folder, prefix=None):
        """Return a copy of the project in *folder*."""
        return TrialProject(self.project.copied_to(folder), prefix)

    def remove(self):
        """Remove the project, its site cache and other folders of it."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, *command, log="log"):
        """Start *command* in a process group of its own, with its output in a file."""
        return self.project.start(*command, log=f"{self.prefix}.{log}", **self.environment)

    def output(self, log="log"):
        """Return the output of the last command."""
        return Path(f"{self.prefix}.{log}").read_text(errors="replace")

    def finish(self, *command):
        """Run *command* and return its exit code; -1 if it does not end within `LIMIT_SECONDS`."""
        process = self.start(*command)
        try:
            return process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return -1

    def restore_truncated_files(self):
        """Restore the files that a kill of DVC truncated with `learner doctor --fix`.

        The watchdog has a second to repair them first. Return whether there were such files.
        """
        lock, note = self.folder / "dvc.lock", self.folder / ".dvc/tmp/rwlock"
        deadline = time.monotonic() + 1
        while is_truncated := not (is_intact_lockfile(lock) and is_intact_rwlock(note)):
            if time.monotonic() > deadline:
                self.finish(sys.executable, "-m", "pipeline", "doctor", "--fix")
                break
            time.sleep(0.01)
        return is_truncated

    def ok(self, *command):
        """Run *command*, which must succeed, and return its output."""
        code = self.finish(*command)
        assert code == 0, f"{command} ended with {code}:\n{self.output()}"
        return self.output()

    def processes(self):
        """Return the running processes of this project, each with its command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if entry.name.isdigit() and self._is_own(entry):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def _is_own(self, entry):
        if entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False
        mark = f"{MARK}={self.folder}\0".encode()
        return mark in (entry / "environ").read_bytes() or (entry / "cwd").readlink() == self.folder

    def orphans(self):
        """Return the processes that still run after `LIMIT_SECONDS`."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def result(self):
        """Return the files that must not depend on interruptions: outputs, dvc.lock and cache."""
        found = self.project.files("dvc.lock", "artifacts", "data", ".dvc/cache")
        return {
            name: data
            for name, data in found.items()
            if not (DVC_PART.search(name) or name.startswith(TELEMETRY))
        }

    def store(self):
        """Return the only run store; None if there is none or more than one."""
        found = list(stores(self.folder / RUNS_FOLDER))
        return found[0] if len(found) == 1 else None

    def beat(self):
        """Return the heartbeat of the run; None if there is none."""
        store = self.store()
        with suppress(OSError, ValueError, TypeError):
            return json.loads((store / HEARTBEAT_FILE).read_text())
        return None

    def experiments(self):
        """Return the dvc.lock of each experiment; those in exec, temp and stash are DVC's own references."""
        listed = self.project.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()
        names = [each for each in listed if each.split("/")[2] not in ("exec", "temp", "stash")]
        return [self.project.ok("git", "show", f"{name}:dvc.lock").encode() for name in names]


def set_seed(project, old, new):
    """Replace the seed of the training in the params of *project*."""
    project.project.edit("params.yaml", f"num_workers: 0\n  seed: {old}", f"num_workers: 0\n  seed: {new}")


def difference(found, wanted):
    """Return how the files *found* differ from *wanted*; empty if they do not."""
    lines = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    lines += [f"{name} is unexpected" for name in sorted(found.keys() - wanted.keys())]
    lines += [
        f"{name} differs" for name in sorted(found.keys() & wanted.keys()) if found[name] != wanted[name]
    ]
    return "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")
