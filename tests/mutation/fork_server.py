"""A process that forks once for each mutant, so that PyTorch and the other packages are imported only once.

It reads a request from each line of its input and writes the outcome to its output, both as JSON. The code of
the project is imported in the fork. A request names the file and its content, the tests, and the limits.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LONG_AGO = 1_000_000_000
"""Modification time of a mutated file, which differs from that of the original and so of its bytecode."""


class Choice:
    """A pytest plugin that runs the chosen tests alone, the fastest first, and keeps the name that fails."""

    def __init__(self, tests):
        self._order = {name: number for number, name in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        """Keep the chosen tests, in their order."""
        items[:] = sorted(
            (each for each in items if each.nodeid in self._order), key=lambda each: self._order[each.nodeid]
        )

    def pytest_runtest_logreport(self, report):
        """Keep the name of a test that fails."""
        if report.failed:
            self.failed = report.nodeid


def main():
    """Answer requests until the input ends."""
    copy, modules = Path(sys.argv[1]), Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.chdir(copy)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.dont_write_bytecode = True
    for name in json.loads(modules.read_text()):
        with contextlib.suppress(Exception):
            if not is_own(name, copy):
                importlib.import_module(name)
    settings.register_profile("mutants", deadline=None, derandomize=True, database=None, max_examples=100)
    settings.load_profile("mutants")
    for line in sys.stdin:
        answers.write(json.dumps(answer(copy, json.loads(line))) + "\n")
        answers.flush()


def is_own(name, copy):
    """Return whether module *name* is the project's own, so that each fork must import it again."""
    spec = importlib.util.find_spec(name)
    return spec is not None and (spec.origin or str(copy)).startswith(str(copy))


def answer(copy, request):
    """Run the tests of *request* with its file changed in *copy*, and return the outcome."""
    path = copy / request["file"]
    original, before = path.read_bytes(), path.stat()
    begun = time.monotonic()
    try:
        path.write_text(request["code"])
        os.utime(path, (LONG_AGO, LONG_AGO))
        outcome, killer = run_forked(copy, request)
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        shutil.rmtree(copy.parent / f"{copy.name}-tmp", ignore_errors=True)
    return {"outcome": outcome, "killer": killer, "seconds": round(time.monotonic() - begun, 2)}


def run_forked(copy, request):
    """Run the tests in a fork; return the outcome, and the test that failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        run_tests(copy, request, writing)
    os.close(writing)
    is_finished = False
    try:
        handle = os.pidfd_open(child)
        is_finished = bool(select.select([handle], [], [], request["seconds"])[0])
        os.close(handle)
    finally:
        if not is_finished:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        end_descendants(child)
    with os.fdopen(reading) as pipe:
        killer = pipe.read()
    return outcome_of(status) if is_finished else "timeout", killer


def outcome_of(status):
    """Return the outcome that the exit *status* of a fork means; a crash or a failed import is a kill."""
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "killed"
    return {0: "survived", 1: "killed", 2: "killed", 4: "killed"}.get(os.WEXITSTATUS(status), "error")


def run_tests(copy, request, writing):
    """Run the tests of *request* in this process, a fork, and exit."""
    code = 3
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (request["cpu"], request["cpu"] + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        output = os.open(
            copy.parent / f"{copy.name}-output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o644
        )
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        choice = Choice(request["tests"])
        files = list(dict.fromkeys(name.partition("::")[0] for name in request["tests"]))
        options = ["-x", "-p", "no:cacheprovider", f"--basetemp={copy.parent / f'{copy.name}-tmp'}"]
        code = int(pytest.main([*options, *files], plugins=[choice]))
        os.write(writing, choice.failed.encode())
    finally:
        os._exit(code)


def end_descendants(child):
    """Kill the session of *child*, and what its tests started and did not wait for."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while left := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in map(int, left):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
