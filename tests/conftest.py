"""Fixtures of all tests: separate projects, and commands that run the real programs in them."""

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
MNIST = ROOT.parent / "shared" / "mnist"


def pytest_collection_modifyitems(items):
    """Leave the tests that take long to ``make long`` and ``make flows``."""
    if os.environ.get("LEARNER_TEST_LONG"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes long: make long runs it"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Run torch with one thread, here and in the commands that tests start: they run side by side."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err


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
        """Run *command* to its end."""
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

    def ok(self, *command, **environment):
        """Run *command*, which must end well; what it printed."""
        done = self.run(*command, **environment)
        assert done.code == 0, done.text
        return done.text

    def learner(self, *arguments, **environment):
        """Run ``learner`` with this folder's own code."""
        return self.run(sys.executable, "-m", "pipeline", *arguments, **environment)

    def edit(self, name, old, new):
        """Replace *old*, which must be there, by *new* in a file."""
        path = self.folder / name
        text = path.read_text()
        assert old in text, f"{old!r} is not in {name}"
        path.write_text(text.replace(old, new))

    def files(self, *names):
        """Every file below *names*, by its path, with its bytes; but for the log that has times in it."""
        found = {}
        for name in names:
            base = self.folder / name
            for path in [base] if base.is_file() else sorted(base.rglob("*")):
                if path.is_file() and path.name != "experiment.log":
                    found[str(path.relative_to(self.folder))] = path.read_bytes()
        return found

    def copied_to(self, folder):
        """The same project, outputs and cache and all, somewhere else."""
        shutil.copytree(self.folder, folder, symlinks=True)
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
    project = Project(folder, home)
    project.ok("git", "init", "-q")
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "The project")
    return project


def short(project):
    """*project*, set to train for two epochs."""
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    project.ok("git", "commit", "-qam", "Train for two epochs")
    return project


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A home for Prefect that no other run has touched."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def checked_out(home):
    """Return a function that creates a fresh project in a folder."""
    return lambda folder: fresh(folder, home)


@pytest.fixture
def project(tmp_path, home):
    """A fresh project with a run of two epochs ahead of it."""
    return short(fresh(tmp_path / "project", home))


@pytest.fixture
def other_project(tmp_path, home):
    """Another one, elsewhere."""
    return short(fresh(tmp_path / "other", home))


@pytest.fixture(scope="session")
def _finished(tmp_path_factory, home, worker_count):
    """The finished project that the first worker to need it makes, and the others copy."""
    if worker_count == 1:
        return finish(tmp_path_factory.mktemp("finished") / "project", home)
    shared = tmp_path_factory.getbasetemp().parent / "finished"  # the parent belongs to all workers
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "complete").exists():
            shutil.rmtree(shared / "project", ignore_errors=True)
            finish(shared / "project", home)
            (shared / "complete").touch()
    return Project(shared / "project", home).copied_to(tmp_path_factory.mktemp("finished") / "project")


def finish(folder, home):
    """Make a project in *folder*, run it under a fixed hash seed, and commit the result."""
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
    """A project whose five stages have run, by `dvc repro`, for two epochs."""
    return _finished.copied_to(tmp_path / "project")
