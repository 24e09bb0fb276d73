"""A pytest plugin for the order of test files: the longest first on several workers, or shuffled.

A file that starts last and takes minutes would run alone. ``tests/durations.json`` has the seconds of each
file; ``make durations`` writes it again. The files whose tests record runs are given to one worker, which
starts the only Prefect server.
"""

import json
import math
import random
from collections import defaultdict
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[2]
DURATIONS = ROOT / "tests/durations.json"
USE_THE_SERVER = ("tests/pipeline/flows/", "tests/pipeline/engine/test_signals.py")
"""Beginnings of the paths of the files whose tests have the fixture ``server``."""


def pytest_addoption(parser):
    """Add the options."""
    group = parser.getgroup("order of files")
    group.addoption(
        "--shuffle", type=int, metavar="SEED", help="run the files in an order that SEED determines"
    )
    group.addoption("--store-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config):
    """Have xdist keep the order of the files, and record their durations if that is asked for."""
    config.option.loadscopereorder = False
    if config.option.store_durations and not is_worker(config):
        config.pluginmanager.register(Recorder())


class SharedServerScheduling(LoadFileScheduling):
    """Gives each file to one worker, and all files of `USE_THE_SERVER` to the same one."""

    def _split_scope(self, nodeid):
        """Return the name of what is given to a worker together."""
        return "server" if nodeid.startswith(USE_THE_SERVER) else super()._split_scope(nodeid)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Use `SharedServerScheduling` with ``--dist loadfile``."""
    return SharedServerScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Sort *items* by their files; the tests of a file stay in their order."""
    files = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    if config.option.shuffle is not None:
        order = sorted(files)
        random.Random(config.option.shuffle).shuffle(order)  # noqa: S311  reproducible
    elif is_worker(config):
        seconds = read_durations()
        order = sorted(files, key=lambda name: -seconds.get(name, math.inf))  # an unknown file may be long
    else:
        return
    items[:] = [item for name in order for item in files[name]]


def is_worker(config):
    """Return whether this process is a worker of xdist."""
    return hasattr(config, "workerinput")


def read_durations():
    """Return the seconds of each file that the last complete run has taken."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


class Recorder:
    """Adds up the seconds of the tests of each file, and writes them at the end of the session."""

    def __init__(self):
        self._seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        """Add the duration of a setup, a call or a teardown."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self):
        """Write the durations of the files that have run, and keep those of the others that still exist."""
        seconds = {name: value for name, value in read_durations().items() if (ROOT / name).exists()}
        seconds |= {name: round(value, 1) for name, value in self._seconds.items()}
        DURATIONS.write_text(f"{json.dumps(seconds, indent=1, sort_keys=True)}\n")
