"""Fixtures for all tests: temporary projects, and commands that run the real programs in them."""

import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from stages.devices import prepare_portable

prepare_portable()  # the shipped params.yaml is portable, and a process chooses its kernels only once
settings.register_profile("no deadline", deadline=None)  # a busy machine must not fail a test
settings.load_profile("no deadline")

ROOT = Path(__file__).parents[1]
MNIST = ROOT.parent / "shared" / "mnist"


LONG = "long test: run it with make long"
NO_ACCELERATOR = "no accelerator found; run `benchmarks/gpu.py --check` on a machine that has one"


def pytest_collection_modifyitems(items):
    """Skip the long tests, which ``make long`` and ``make flows`` run, and those that need a CUDA device."""
    reasons = {} if os.environ.get("LEARNER_TEST_LONG") else {"long": LONG}
    if not torch.cuda.is_available():
        reasons["gpu"] = NO_ACCELERATOR
    for item in items:
        for marker in filter(item.get_closest_marker, reasons):
            item.add_marker(pytest.mark.skip(reason=reasons[marker]))


@pytest.fixture(autouse=True, scope="session")
def _configure_process():
    """Use one thread for torch and handle SIGINT, in this process and in the commands that tests start."""
    os.environ["OMP_NUM_THREADS"] = "1"  # tests run in parallel
    torch.set_num_threads(1)
    # A non-interactive shell starts a background process with SIGINT ignored, and child processes inherit
    # that. The tests of Ctrl-C would then wait forever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _enable_logging():
    """Enable logging, which DVC's command line disables in the process of a test that calls it."""
    logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Finished:
    """The exit code and the output of a finished command."""

    code: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err

    @property
    def imported(self):
        """The names of the modules that a Python with ``-X importtime`` has imported."""
        lines = (line for line in self.err.splitlines() if line.startswith("import time:"))
        return {line.rsplit("|", 1)[1].strip() for line in lines}


class Project:
    """A project in a separate folder, in which tests run commands as a user does."""

    def __init__(self, folder, home):
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DVC_"))
        } | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "COLUMNS": "200",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@localhost",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@localhost",
        }

    def run(self, *command, **environment):
        """Run *command* with additional *environment* variables; return its exit code and output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *command, log, **environment):
        """Start *command* in a process group of its own, with its output in the file *log*."""
        with Path(log).open("wb") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ok(self, *command, **environment):
        """Run *command*, check that it exits with 0, and return its output."""
        done = self.run(*command, **environment)
        assert done.code == 0, done.text
        return done.text

    def learner(self, *arguments, **environment):
        """Run ``learner`` with the code in the folder of the project."""
        return self.run(sys.executable, "-m", "pipeline", *arguments, **environment)

    def edit(self, name, old, new):
        """Replace *old* by *new* in the file *name*, which must contain *old*."""
        path = self.folder / name
        text = path.read_text()
        assert old in text, f"{old!r} is not in {name}"
        path.write_text(text.replace(old, new))

    def files(self, *names):
        """Return the content of each file below *names* by its path, except for those with times."""
        found = {}
        for name in names:
            base = self.folder / name
            for path in [base] if base.is_file() else sorted(base.rglob("*")):
                untracked = path.name == "experiment.log" or "telemetry" in path.parts
                if path.is_file() and not untracked:
                    found[str(path.relative_to(self.folder))] = path.read_bytes()
        return found

    def copied_to(self, folder):
        """Copy the project with its outputs and cache to *folder*, and return the copy."""
        watchdogs = shutil.ignore_patterns("watchdog-*")  # that of the last command may end while this copies
        shutil.copytree(self.folder, folder, symlinks=True, ignore=watchdogs)
        return Project(folder, self.environment["PREFECT_HOME"])


def fresh(folder, home):
    """Return a fresh checkout of the project in *folder*, without outputs."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        if not name.startswith(("tests/", "benchmarks/", "dvc.lock")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for package in ("stages", "pipeline"):  # compiled modules, which are valid for copies of the same time
        for compiled in (ROOT / package).rglob("__pycache__/*.pyc"):
            copy = folder / compiled.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(compiled, copy)
    project = Project(folder, home)
    project.ok("git", "init", "-q")
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "The project")
    return project


def short(project):
    """Set *project* to train for two epochs, and return it."""
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    project.ok("git", "commit", "-qam", "Train for two epochs")
    return project


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Return a new home folder for Prefect."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def checked_out(home):
    """Return a function that creates a fresh project in a folder."""
    return lambda folder: fresh(folder, home)


@pytest.fixture(scope="session")
def open_project(home):
    """Return a function that opens the project in a folder, which may be empty."""
    return lambda folder: Project(folder, home)


@pytest.fixture
def project(tmp_path, home):
    """Return a fresh project that is set to train for two epochs."""
    return short(fresh(tmp_path / "project", home))


@pytest.fixture
def other_project(tmp_path, home):
    """Return a second project like `project`, in another folder."""
    return short(fresh(tmp_path / "other", home))


@pytest.fixture(scope="session")
def _finished(tmp_path_factory, home, worker_count):
    """Return a finished project; the first worker that needs it makes it, and the others copy it."""
    if worker_count == 1:
        return finish(tmp_path_factory.mktemp("finished") / "project", home)
    shared = tmp_path_factory.getbasetemp().parent / "finished"  # all workers share the parent folder
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "complete").exists():
            shutil.rmtree(shared / "project", ignore_errors=True)
            finish(shared / "project", home)
            (shared / "complete").touch()
    return Project(shared / "project", home).copied_to(tmp_path_factory.mktemp("finished") / "project")


def finish(folder, home):
    """Make a project in *folder*, run it with a fixed hash seed, and commit the result."""
    made = short(fresh(folder, home))
    made.ok("dvc", "repro", PYTHONHASHSEED="1")
    made.ok("git", "add", "-A")
    made.ok("git", "commit", "-qm", "Run it")
    return made


@pytest.fixture(scope="session")
def worker_count():
    """Return the number of processes that run tests."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@pytest.fixture
def finished(_finished, tmp_path):
    """Return a project whose five stages `dvc repro` has run, with two epochs of training."""
    return _finished.copied_to(tmp_path / "finished")
