"""A pytest plugin that records, for each test, its outcome, its seconds, and the lines that it runs.

It is loaded by `baseline.measure`, which has coverage started by environment variables, also in the processes
that the tests start.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import coverage
import pytest

TEST = "MUTANTS_TEST"
"""The environment variable with the current test, which is the context of coverage in child processes."""


class Recorder:
    """A plugin that collects a row for each test and writes them, with the loaded modules, at the end."""

    def __init__(self, path):
        self._path = path
        self._rows = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Run the test *item* in its own context of coverage."""
        os.environ[TEST] = item.nodeid
        if current := coverage.Coverage.current():
            current.switch_context(item.nodeid)
        row = self._rows[item.nodeid] = {"passed": False, "seconds": time.monotonic(), "cpu": cpu_seconds()}
        try:
            return (yield)
        finally:
            row["seconds"] = time.monotonic() - row["seconds"]
            row["cpu"] = cpu_seconds() - row["cpu"]
            os.environ[TEST] = ""

    def pytest_runtest_logreport(self, report):
        """Record the outcome of one phase."""
        row = self._rows[report.nodeid]
        row["passed"] = (report.when == "setup" or row["passed"]) and report.passed

    def pytest_sessionfinish(self):
        """Write the rows and the loaded modules."""
        rows = {name: row for name, row in self._rows.items() if row["passed"]}
        failed = sorted(name for name, row in self._rows.items() if not row["passed"])
        content = {"tests": rows, "failed": failed, "modules": list(sys.modules)}
        Path(self._path).write_text(json.dumps(content))


def cpu_seconds():
    """Return the processor time of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def pytest_configure(config):
    """Install the recorder."""
    config.pluginmanager.register(Recorder(os.environ["MUTANTS_RECORD"]))
