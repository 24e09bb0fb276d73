"""Signals in each phase of a command: exit codes, unchanged outputs, and a repeated command that succeeds.

Each test pauses the process in the phase under test, so that the signal arrives before the phase ends. If
neither the start of the process nor its parent process is under test, it is a fork.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest
from forked_programs import ForkedProgram
from long_tests import long
from prefect_servers import Api
from waiting import LIMIT_SECONDS, has_exited, wait_until

from pipeline.engine.reproduce import reproduce
from pipeline.engine.stage_run import run_stage
from stages.contracts.errors import RunInterruptedError
from stages.renderers import NoRenderer

HOLD = '''
import os, select, signal, socket, sys

def hold(phase):
    """Wait until the file "release" exists, if the variable HOLD selects *phase*.

    Create the file "signaled" when a signal with a handler arrives.
    """
    if os.environ.get("HOLD") == phase and not os.path.exists("release"):
        arrived, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        before = signal.set_wakeup_fd(wakeup.fileno())
        with open("held", "w") as file:
            file.write(str(os.getpid()))
        while not os.path.exists("release"):
            if select.select([arrived], [], [], 0.01)[0] and arrived.recv(99):
                open("signaled", "w").close()
        signal.set_wakeup_fd(before)

def audit(event, args):
    if event == "import" and args[0].partition(".")[0] in ("typer", "torch", "numpy"):
        hold("import " + args[0].partition(".")[0])
    elif event == "os.rename" and str(args[1]).endswith("artifacts/metrics.json"):
        hold("publish")
    elif event == "open" and str(args[0]).endswith("dvc.lock") and "w" in str(args[1]):
        hold("dvc.lock")
        truncate("dvc.lock", args[0])
    elif event == "open" and str(args[0]).endswith("tmp/rwlock") and "w" in str(args[1]):
        truncate("rwlock", args[0])

def truncate(name, path):
    """Truncate *path*, as a write in progress does, and wait, if a stage has started."""
    has_started = any(each.startswith("watchdog-") for each in os.listdir(".runs"))
    if has_started and os.environ.get("HOLD") == "truncated " + name:
        os.truncate(path, 5)
        hold("truncated " + name)

if os.environ.get("HOLD"):
    sys.addaudithook(audit)
'''
MODEL = """
import os
from phases import hold
from torch import nn
from stages.models.steps import ClassificationStep

class Holding(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        if os.environ.get("DVC_STAGE") != "build-learner":
            hold("startup")
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        if self.steps == 3:
            hold("training")
        return super().train_step(batch)

    def valid_step(self, batch):
        hold("validation")
        return super().valid_step(batch)
"""
HELD = """
import phases, runpy, sys
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
NUMBERS = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}
REPRO = ("dvc", "repro", "-s", "fit")
LEARNER = (sys.executable, "-m", "pipeline")


class Running:
    """A command that runs in a project, paused in the phase that HOLD selects."""

    def __init__(self, project, launch, *command, **environment):
        self.folder = project.folder
        self.errors = project.folder.with_name("errors")
        self.release()
        for name in ("held", "release", "signaled"):
            (self.folder / name).unlink(missing_ok=True)
        self.process = launch(project, command, project.environment | environment, self.errors)
        if "HOLD" in environment:
            self.pid = self._wait_until_held()

    def _wait_until_held(self):
        """Return the id of the process that waits in the phase."""
        held = self.folder / "held"
        return wait_until(lambda: int(held.read_text()), self.errors.read_text, self.process)

    def send(self, name):
        """Send signal *name* to the process that waits, and return after it has arrived."""
        (self.folder / "signaled").unlink(missing_ok=True)
        os.kill(self.pid, signal.Signals[name])
        wait_until(self.is_signaled)

    def is_signaled(self):
        return (self.folder / "signaled").exists() or has_exited(self.pid)

    def release(self):
        (self.folder / "release").touch()

    def wait(self):
        """Wait until the command has ended, and return its exit code and its standard error."""
        return self.process.wait(LIMIT_SECONDS), self.errors.read_text()


def launch_process(project, command, environment, errors):
    """Start *command*, whose Python imports `phases` before any other module."""
    with errors.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=project.folder,
            env=environment | {"PYTHONPATH": str(project.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )


def launch_fork(project, command, environment, errors):
    """Start the module *command*[0] with the other arguments in a fork, whose model imports `phases`."""
    errors.write_bytes(b"")
    return ForkedProgram(
        command[0],
        command[1:],
        folder=project.folder,
        environment=environment,
        streams=(os.devnull, errors),
        new_session=True,
    )


@pytest.fixture(autouse=True)
def _default_handlers():
    """Restore the default handlers of the signals that nohup and a background job of a shell ignore."""
    default = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def _holdable(_finished, tmp_path_factory):
    """A finished project whose model waits in the phase that HOLD selects, with `fit` out of date."""
    made = _finished.copied_to(tmp_path_factory.mktemp("holdable") / "project")
    (made.folder / "phases.py").write_text(HOLD)
    (made.folder / "sitecustomize.py").write_text("import phases")  # with PYTHONPATH, before any other module
    (made.folder / "holding.py").write_text(MODEL)
    (made.folder / "held.py").write_text(HELD)
    (made.folder / "release").touch()
    made.use_model("holding:Holding")
    made.add_deps()
    made.call("run").ok()
    made.ok("git", "add", "-A")
    made.ok("git", "commit", "-qm", "Run it with a model that waits")
    made.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    return made


@pytest.fixture
def holdable(_holdable, tmp_path):
    """A copy of the project whose commands can be paused, for one test."""
    return _holdable.copied_to(tmp_path / "project")


@pytest.fixture
def start(holdable):
    """Yield a function that starts a command in the project, and end its processes after the test."""
    started = []

    def start(*command, launch=launch_process, **environment):
        started.append(Running(holdable, launch, *command, **environment))
        return started[-1]

    yield start
    for running in started:
        running.release()
        with suppress(OSError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()


def outputs(project):
    """Return the files that a run publishes, and dvc.lock."""
    return project.files("artifacts", "data", "dvc.lock")


def repeat(project):
    """Run `dvc repro` again, and check that it succeeds and that `fit` is up to date."""
    project.fork(*REPRO).ok()
    assert "fit" not in project.dvc("status", "fit").ok()


PROGRAMS = {"process": (launch_process, LEARNER), "fork": (launch_fork, ("pipeline",))}


@pytest.mark.parametrize(
    ("stage", "phase", "name", "program"),
    [
        long("fit", "import torch", "SIGTERM", "process"),
        long("load-data", "import numpy", "SIGINT", "process"),
        long("fit", "startup", "SIGHUP", "process"),
        ("fit", "training", "SIGTERM", "fork"),
        long("fit", "training", "SIGTERM", "process"),
        long("fit", "training", "SIGHUP", "process"),
        ("fit", "validation", "SIGTERM", "fork"),
        ("fit", "publish", "SIGINT", "fork"),
    ],
)
def test_signaled_stage_exits_with_the_code_of_the_signal_and_one_line(
    holdable, start, stage, phase, name, program
):
    launch, command = PROGRAMS[program]
    before = outputs(holdable)
    running = start(*command, "stage", stage, launch=launch, HOLD=phase)

    running.send(name)
    if phase in ("training", "validation", "publish"):
        assert running.process.poll() is None
        running.release()
    code, errors = running.wait()

    assert code == NUMBERS[name]
    assert errors.splitlines()[-1].startswith(f"{name}: ")
    assert "Traceback" not in errors
    assert phase == "publish" or outputs(holdable) == before


def test_second_sigint_ends_a_stage_at_once(start):
    running = start("pipeline", "stage", "fit", launch=launch_fork, HOLD="training")

    running.send("SIGINT")
    assert running.process.poll() is None
    running.send("SIGINT")

    assert running.wait()[0] == 130


@pytest.mark.long  # test_deferred_signals.py
def test_stage_ignores_a_signal_that_its_parent_process_ignores(holdable, start):
    command = f"trap '' HUP; exec {sys.executable} -m pipeline stage fit"
    running = start("sh", "-c", command, HOLD="training")

    os.kill(running.pid, signal.SIGHUP)
    running.release()

    assert running.wait()[0] == 0


def test_interrupted_repro_keeps_the_previous_outputs_and_can_be_repeated(holdable, start):
    before = outputs(holdable)
    running = start(*REPRO, launch=launch_fork, HOLD="training")

    running.send("SIGTERM")
    running.release()
    code, errors = running.wait()

    assert code != 0
    assert "exited with 143" in errors
    assert outputs(holdable) == before
    repeat(holdable)


@pytest.mark.parametrize(
    ("phase", "name", "shell"),
    [
        long("import typer", "SIGKILL", "/bin/sh"),  # before the stage has read which process started it
        ("training", "SIGKILL", "/bin/sh"),
        long("training", "SIGTERM", "/bin/bash"),
    ],
)
def test_stage_exits_if_dvc_is_killed_and_dvc_repro_can_be_repeated_at_once(
    holdable, start, phase, name, shell
):
    # The shell remains the parent of the stage, because its command has two parts.
    holdable.edit("dvc.yaml", "stage fit", "stage fit || exit 1")
    launch = (
        launch_fork if phase == "training" else launch_process
    )  # which has the stage import `phases` first
    running = start(*REPRO, launch=launch, HOLD=phase, SHELL=shell)

    running.process.send_signal(signal.Signals[name])
    running.process.wait(LIMIT_SECONDS)
    assert not has_exited(running.pid)
    errors = holdable.folder.with_name("errors of the second")
    again = launch(holdable, REPRO, holdable.environment, errors)
    if phase == "training":
        wait_until(running.is_signaled)
    running.release()

    wait_until(lambda: has_exited(running.pid))
    assert again.wait(LIMIT_SECONDS) == 0, errors.read_text()
    assert "fit" not in holdable.dvc("status", "fit").ok()


@pytest.mark.long  # test_interrupted_flow_saves_before_prefect_records_its_state
def test_interrupted_flow_keeps_the_previous_outputs_and_releases_the_locks_of_dvc(holdable, start):
    holdable.dvc("repro", "create-artifact-dir").ok()
    before = outputs(holdable)
    running = start("pipeline", "run", launch=launch_fork, HOLD="training")

    running.send("SIGINT")
    running.release()
    code, errors = running.wait()

    assert code == 130
    assert errors.splitlines()[-1].startswith("SIGINT: ")
    assert outputs(holdable) == before
    assert (holdable.folder / ".dvc/tmp/rwlock").read_text() == "{}"
    repeat(holdable)


def test_signal_is_deferred_while_dvc_writes_its_lockfile(holdable, start):
    running = start("held", "pipeline", "run", launch=launch_fork, HOLD="dvc.lock")

    running.send("SIGTERM")
    assert running.process.poll() is None
    running.release()

    assert running.wait()[0] == 143
    assert "up to date" in holdable.dvc("status", "create-artifact-dir").ok()
    assert "up to date" not in holdable.dvc("status", "fit").ok()


@pytest.mark.parametrize(
    ("command", "truncated"),
    [
        long(REPRO, "dvc.lock"),
        (("held", "pipeline", "run"), "rwlock"),
        long(REPRO, "rwlock"),
        long((*LEARNER, "run"), "dvc.lock"),
    ],
)
def test_file_of_dvc_that_a_kill_truncated_is_repaired(holdable, start, command, truncated):
    before = (holdable.folder / "dvc.lock").read_bytes()
    launch = launch_fork if command[0] == "held" else launch_process
    running = start(*command, launch=launch, HOLD=f"truncated {truncated}")
    path = holdable.folder / ("dvc.lock" if truncated == "dvc.lock" else ".dvc/tmp/rwlock")
    assert path.stat().st_size == 5

    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait(LIMIT_SECONDS)

    wait_until(lambda: has_exited(running.pid))
    wait_until(lambda: not path.exists() or path.stat().st_size != 5)
    if truncated == "dvc.lock":
        assert path.read_bytes() == before
    repeat(holdable)


TIMED = """
from prefect import flow
from pipeline.engine.reproduce import reproduce
from pipeline.flows.task_run import TASKS, hide_expected_errors

@flow(name="timed", validate_parameters=False)
def timed():
    hide_expected_errors()
    TASKS["fit"].with_options(timeout_seconds=3600)(reproduce)

timed()
"""


def find_states(api, name):
    """Return the names of the states of the flow runs with *name* that no schedule has created.

    Those of a schedule whose deployment was removed have no deployment either, and have not begun.
    """
    wanted = {"flows": {"name": {"any_": [name]}}, "flow_runs": {"deployment_id": {"is_null_": True}}}
    found = api.post("flow_runs/filter", {"sort": "START_TIME_ASC", **wanted})
    return [run["state_name"] for run in found if run["state_type"] != "SCHEDULED"]


def test_interrupted_flow_saves_before_prefect_records_its_state(holdable, start, server):
    (holdable.folder / "timed.py").write_text(TIMED)
    api = Api(server)
    earlier = len(find_states(api, "learner"))

    terminated = start("pipeline", "run", launch=launch_fork, HOLD="training", PREFECT_API_URL=server)
    terminated.send("SIGTERM")
    assert terminated.process.poll() is None
    terminated.release()
    code, errors = terminated.wait()
    assert code == 143
    assert "SIGTERM: stopped after epoch 0" in errors

    timed = start("timed", launch=launch_fork, HOLD="training", PREFECT_API_URL=server)
    timed.send("SIGALRM")  # like the timer of Prefect at a timeout
    assert timed.process.poll() is None
    timed.release()
    assert timed.wait()[0] == 1

    assert find_states(api, "learner")[earlier:] == ["Crashed"]
    assert find_states(api, "timed") == ["TimedOut"]
    assert (holdable.folder / ".dvc/tmp/rwlock").read_text() == "{}"


class StopInEpoch3(NoRenderer):
    """A renderer that stops the run in epoch 3, as a user of the terminal view can."""

    def step(self, progress):
        if progress.epoch == 3:
            progress.interrupter.stop()


def test_stopped_fit_is_not_recorded_and_keeps_the_previous_outputs(finished, monkeypatch):
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")
    before = outputs(finished)
    monkeypatch.chdir(finished.folder)

    with pytest.raises(RunInterruptedError, match="after epoch 2 of 3") as stopped:
        reproduce("fit", run=partial(run_stage, renderer=StopInEpoch3()))

    assert stopped.value.exit_code == 130
    assert outputs(finished) == before
    assert json.loads((finished.folder / "artifacts/metrics.json").read_text())["epoch"] == 2
