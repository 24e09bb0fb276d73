"""Projects that are made once for the same code, in ``build/``, and that tests copy.

A template is made by the first process that needs it, and made again if a file that a clone would have has
changed, or the Python or a package that computes.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from projects import Project
from repository import ROOT, list_files
from waiting import wait_until

TEMPLATES = ROOT / "build/finished"
NOT_COPIED = ("tests/", "benchmarks/", ".github/", ".ci/", "CHANGELOG.md", "dvc.lock")
HASHED_PACKAGES = ("torch", "dvc", "numpy")
REPRO_OUTPUT = "repro.txt"


def fresh(folder, home):
    """Return a fresh checkout of the project in *folder*, without outputs."""
    return _copy("fresh", _make_fresh, folder, home)


def short(folder, home):
    """Return a fresh checkout in *folder* that trains a small model for two epochs of twelve steps."""
    return _copy("short", _make_short, folder, home)


def finished_template(home):
    """Return a finished project that all tests share and only copy."""
    return Project(template("finished", partial(_make_finished, home=home)), home)


def read_repro_output(home):
    """Return the output of the `dvc repro` that has made the finished project."""
    return (finished_template(home).folder.parent / REPRO_OUTPUT).read_text()


def _copy(name, make, folder, home):
    return Project(template(name, partial(make, home=home)), home).copied_to(folder)


def template(name, make):
    """Return the folder of the template *name*, which the first process that needs it makes with *make*."""
    folder = _templates_of_this_code()
    with (folder / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / f"{name}.complete"
        if not complete.exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir()
            make(folder / name)
            complete.touch()
    return folder / name


def _make_fresh(folder, home):
    project = Project(folder, home)
    for name in _files_of_the_project():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    compileall = ("-m", "compileall", "-q", "stages", "pipeline")
    project.ok(sys.executable, *compileall)  # valid for copies of the same time
    project.ok("git", "init", "-q")
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "The project")
    project.ok("git", "repack", "-adq")  # one file instead of 750, which every copy would have


def _make_short(folder, home):
    project = fresh(folder, home)
    project.edit("params.yaml", "num_epochs: 20", "num_epochs: 2")
    project.edit("params.yaml", "valid_fraction: 0.2", "valid_fraction: 0.8")
    project.edit("params.yaml", "kind: cnn\n", "kind: cnn\n    hidden_size: 32\n")
    project.ok("git", "commit", "-qam", "Train a small model for two epochs of twelve steps")


def _make_finished(folder, home):
    """Run `dvc repro`, and commit the result."""
    project = short(folder, home)
    printed = project.dvc("repro").ok()
    (folder.parent / REPRO_OUTPUT).write_text(printed)
    wait_until(lambda: not list((folder / ".runs").glob("watchdog-*")))
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "Run it")


@functools.cache
def _templates_of_this_code():
    """Return the folder of the templates of the present code, and remove those of other code.

    It is in use, and stays, until this process has ended.
    """
    folder = TEMPLATES / _hash_of_the_project()
    TEMPLATES.mkdir(parents=True, exist_ok=True)
    with (TEMPLATES / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        fcntl.flock(os.open(folder / "in-use", os.O_RDWR | os.O_CREAT), fcntl.LOCK_SH)
        for other in TEMPLATES.glob("*/in-use"):
            with other.open("a") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other.parent, ignore_errors=True)
    return folder


def _hash_of_the_project():
    """Return a hash of what the files of a template depend on."""
    versions = [sys.version, torch.__version__, *(version(name) for name in HASHED_PACKAGES)]
    content = hashlib.sha256("\n".join(versions).encode())
    for path in (*(ROOT / name for name in _files_of_the_project()), Path(__file__)):
        content.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return content.hexdigest()[:16]


def _files_of_the_project():
    """Return the names of the files that a clone would have and that commands or stages may read."""
    return [name for name in list_files() if not name.startswith(NOT_COPIED)]


EXPERIMENTS = ["workspace", "big", "longer", "<script>broken=1<"]
"""The run and the experiments of `experiments_template`, each with another param."""


def experiments_template(home):
    """Return a finished project with three experiments, which tests only copy."""
    return Project(template("experiments", partial(_run_experiments, home=home)), home)


def _run_experiments(folder, home):
    project = finished_template(home).copied_to(folder)
    changes = ("fit.batch_size=64", "fit.num_epochs=3", "save_model.recorder=compact")
    for name, change in zip(EXPERIMENTS[1:], changes, strict=True):
        project.call("run", "-S", change).ok()
        project.add_experiment(name)
        project.ok("git", "checkout", "-q", ".")
    project.dvc("checkout", "-q").ok()
