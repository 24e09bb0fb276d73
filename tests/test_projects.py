"""Commands that tests run without a new interpreter do what a process does, and leave no trace."""

import gc
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from long_tests import long
from templates import finished_template
from waiting import LIMIT_SECONDS, wait_until

SHARED = Path(__file__).parent / "shared"


def read_state():
    """Return what a command in this process could change."""
    logger = logging.getLogger()
    return {
        "folder": os.getcwd(),  # noqa: PTH109
        "environment": dict(os.environ),
        "path": list(sys.path),
        "finders": list(sys.meta_path),
        "arguments": list(sys.argv),
        "main": sys.modules["__main__"],
        "streams": (sys.stdout, sys.stderr),
        "logging": (logger.level, list(logger.handlers), logging.root.manager.disable),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
        "random": (random.getstate(), torch.get_rng_state().tolist()),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.backends.mkldnn.enabled),
    }


@pytest.mark.parametrize(
    "arguments", [long(["check", "--unknown"]), ["status", "--unknown"], long(["chekc"])]
)
def test_call_returns_the_outcome_of_a_process(finished, arguments):
    assert finished.call(*arguments) == finished.learner(*arguments)


def send_changes(project, results):
    """Send each command of *project* that changes this process."""
    gc.freeze()  # a session of onnxruntime that another test has left would wait for threads of its process
    before = read_state()
    for command in (["check"], ["status"], ["compare"], ["runs", "list"], ["data", "--unknown"]):
        project.call(*command)
        if (after := read_state()) != before:
            results.send((command, [name for name in before if after[name] != before[name]]))
    results.send("finished")


def test_call_leaves_the_process_unchanged(finished):
    """In a fork, in which no thread of another test runs."""
    gc.collect()
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=send_changes, args=(finished, sent))
    process.start()
    sent.close()  # so that a child that dies ends the wait

    assert received.recv() == "finished"
    process.join()


def test_code_that_a_test_edits_runs_in_a_fork(project):
    project.edit(
        "pipeline/commands/project.py",
        "import json\n",
        'import json; import os; print("in process", os.getpid())\n',
    )

    printed = project.call("check").ok()

    assert "in process" in printed
    assert f"in process {os.getpid()}\n" not in printed


PROBE = """
import logging, sys
print("prefect" in sys.modules, logging.root.handlers)
import prefect
from prefect.settings import get_current_settings
print(get_current_settings().api.url, [type(each).__name__ for each in logging.root.handlers])
print(callable(prefect.flow), prefect.__spec__.name)
"""


def test_fork_has_imported_prefect_as_soon_as_it_imports_it_with_its_own_settings(project):
    (project.folder / "probe.py").write_text(PROBE)
    environment = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}

    forked = project.fork("probe", **environment)

    assert forked.out.splitlines() == [
        "False []",
        "http://127.0.0.1:9/api ['PrefectConsoleHandler']",
        "True prefect",
    ]
    assert forked.err == ""


def test_started_command_can_be_signaled(project, tmp_path):
    process = project.start_fork("pipeline", "run", log=tmp_path / "log")
    wait_until(lambda: list((project.folder / ".runs").glob("*/checkpoint/trainer-1.*")), process=process)

    os.killpg(process.pid, signal.SIGTERM)

    assert process.wait() == 128 + signal.SIGTERM
    assert "SIGTERM" in (tmp_path / "log").read_text()


def test_variable_that_a_fork_cannot_have_is_refused(project):
    with pytest.raises(AssertionError, match="PYTHONHASHSEED"):
        project.call("run", PYTHONHASHSEED="2")


def test_edit_of_a_copy_does_not_change_the_template(finished, home):
    before = finished_template(home).files("params.yaml", "artifacts", ".dvc/cache", ".runs")
    for path in finished.folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"edited")

    assert finished_template(home).files("params.yaml", "artifacts", ".dvc/cache", ".runs") == before


STOP = """
import multiprocessing.forkserver, os, signal
from forked_programs import stop_server

multiprocessing.forkserver.ensure_running()
worker = os.fork()
if worker == 0:
    signal.alarm(LIMIT_SECONDS)
    signal.pause()
stop_server()
print(os.waitpid(worker, os.WNOHANG))
os.kill(worker, signal.SIGKILL)
"""


def test_server_of_forks_stops_while_a_worker_of_this_process_is_alive():
    command = [sys.executable, "-c", STOP.replace("LIMIT_SECONDS", str(LIMIT_SECONDS))]

    done = subprocess.run(command, cwd=SHARED, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("(0, 0)\n", "")
