"""Fixtures for all tests: temporary projects, and commands that run the real programs in them."""

import gc
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from forked_programs import SERVER, share_server, start_server, stop_server
from hypothesis import settings
from long_tests import IS_LONG, examples
from projects import Project
from psutil import virtual_memory
from templates import finished_template, fresh, read_repro_output, short

from stages.devices import prepare_portable

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic tests need it before CUDA is used
# Before Prefect is imported: a thread without settings would start a server, which may outlive the tests.
os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
prepare_portable()  # the shipped params.yaml is portable, and a process chooses its kernels only once
settings.register_profile("no deadline", deadline=None, max_examples=examples(100))  # the machine may be busy
settings.load_profile("no deadline")

# A fork may not destroy what tests before it have left: a pool of threads would wait for threads it lacks.
os.register_at_fork(after_in_child=gc.freeze)

pytest_plugins = ["file_order"]

MEMORY = Path("/dev/shm")  # noqa: S108  pytest makes a folder of its own there
NEEDED_BYTES = 6_000_000_000
"""A run of all tests has used 0.6 GB at most; several may run at once."""
if MEMORY.is_dir() and min(shutil.disk_usage(MEMORY).free, virtual_memory().available / 2) > NEEDED_BYTES:
    # A copy of a project on a disk took 0.5 s of processor time, and its removal a second by the clock.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

LONG = "long test: run it with make long"
NO_ACCELERATOR = "no accelerator found; run `benchmarks/gpu.py --check` on a machine that has one"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Start one server of forks for the workers of xdist, each of which would start its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # forks inherit it; see `_configure_process`
    node.workerinput["server of forks"] = SERVER._forkserver_address or start_server()


def pytest_configure(config):
    """Have a worker of xdist use the server of the process that has started it."""
    if hasattr(config, "workerinput"):
        share_server(config.workerinput["server of forks"])


def pytest_unconfigure():
    """Stop the server that this process has started."""
    stop_server()


def pytest_collection_modifyitems(config, items):
    """Skip the long tests, which ``make long`` runs, and those that need a CUDA device.

    A worker of xdist leaves the long ones out: it would take 5 ms to skip each of 2,400, and to report it.
    """
    reasons = {} if IS_LONG else {"long": LONG}
    if reasons and hasattr(config, "workerinput"):
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if not torch.cuda.is_available():
        reasons["gpu"] = NO_ACCELERATOR
    for item in items:
        assert " at 0x" not in item.nodeid, f"give {item.nodeid} an id: workers collect other names"
        for marker in filter(item.get_closest_marker, reasons):
            item.add_marker(pytest.mark.skip(reason=reasons[marker]))


def pytest_collection_finish():
    """Exclude what collection has made from garbage collections, which took 14 percent of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


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


@pytest.fixture(autouse=True)
def _restore_search_path():
    """Remove the folders of projects whose parts a test has imported."""
    before = list(sys.path)
    yield
    sys.path[:] = before


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
    return short(tmp_path / "project", home)


@pytest.fixture
def other_project(tmp_path, home):
    """Return a second project like `project`, in another folder."""
    return short(tmp_path / "other", home)


@pytest.fixture(scope="session")
def _finished(home):
    """Return the finished project of all tests, which they only copy."""
    return finished_template(home)


@pytest.fixture(scope="session")
def repro_output(home):
    """Return what the `dvc repro` printed that has made the finished project."""
    return read_repro_output(home)


@pytest.fixture
def finished(_finished, tmp_path):
    """Return a project whose five stages `dvc repro` has run, with two epochs of training."""
    return _finished.copied_to(tmp_path / "finished")
