"""A signal in any phase: the exit code says so, nothing half-made is recorded, and the same command goes on.

Every test holds the real process in the phase that it is about, so that the signal comes before the end.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import LIMIT_SECONDS, wait_until

HOLD = '''
import os, select, signal, socket, sys

def hold(phase):
    """Wait in *phase*, if it is the one that is asked for, until there is a file called release.

    A signal that has a handler leaves a file called signalled.
    """
    if os.environ.get("HOLD") == phase and not os.path.exists("release"):
        arrived, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        before = signal.set_wakeup_fd(wakeup.fileno())
        with open("held", "w") as file:
            file.write(str(os.getpid()))
        while not os.path.exists("release"):
            if select.select([arrived], [], [], 0.01)[0] and arrived.recv(99):
                open("signalled", "w").close()
        signal.set_wakeup_fd(before)

def audit(event, args):
    if event == "import" and args[0].partition(".")[0] in ("typer", "torch", "sklearn"):
        hold("import " + args[0].partition(".")[0])
    elif event == "os.rename" and str(args[1]).endswith("artifacts/metrics.json"):
        hold("publish")
    elif event == "open" and str(args[0]).endswith("dvc.lock") and "w" in str(args[1]):
        hold("dvc.lock")
        torn("dvc.lock", args[0])
    elif event == "open" and str(args[0]).endswith("tmp/rwlock") and "w" in str(args[1]):
        torn("rwlock", args[0])

def torn(name, path):
    """Wait, once a stage has begun, with the file as it is while it is being written."""
    begun = any(each.startswith("watchdog-") for each in os.listdir(".runs"))
    if begun and os.environ.get("HOLD") == "torn " + name:
        os.truncate(path, 5)
        hold("torn " + name)

if os.environ.get("HOLD"):
    sys.addaudithook(audit)
'''
MODEL = """
import os
from sitecustomize import hold
from torch import nn
from stages.models.steps import ClassificationStep

class Holding(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        if os.environ.get("DVC_STAGE") != "build-learner":
            hold("start-up")
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
NUMBERS = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}
REPRO = ("dvc", "repro", "-s", "fit")


class Running:
    """A command of a project, started and not waited for."""

    def __init__(self, project, *command, **environment):
        self.folder = project.folder
        self.release()
        for name in ("held", "release", "signalled"):
            (self.folder / name).unlink(missing_ok=True)
        self.process = subprocess.Popen(
            command,
            cwd=project.folder,
            env=project.environment | {"PYTHONPATH": str(project.folder)} | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if "HOLD" in environment:
            self.pid = self._held()

    def _held(self):
        """The process that waits in the phase."""
        held = self.folder / "held"
        return wait_until(lambda: int(held.read_text()), self.process.stderr.read, self.process)

    def send(self, name):
        """Send a signal to the process that waits, and return once it has arrived there."""
        (self.folder / "signalled").unlink(missing_ok=True)
        os.kill(self.pid, signal.Signals[name])
        wait_until(self.is_signalled)

    def is_signalled(self):
        return (self.folder / "signalled").exists() or is_gone(self.pid)

    def release(self):
        (self.folder / "release").touch()

    def ended(self):
        """The exit code, and what was said."""
        said = self.process.communicate(timeout=LIMIT_SECONDS)[1]
        return self.process.returncode, said


def is_gone(pid):
    with suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


@pytest.fixture(autouse=True)
def _hangups_are_heard():
    """Also where these tests were started by something that ignores them, as nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def _holdable(_finished, tmp_path_factory):
    """A finished project that waits where it is told to, with another run of fit ahead of it."""
    made = _finished.copied_to(tmp_path_factory.mktemp("holdable") / "project")
    (made.folder / "sitecustomize.py").write_text(HOLD)
    (made.folder / "holding.py").write_text(MODEL)
    (made.folder / "release").touch()
    made.edit("params.yaml", "    kind: cnn\n    dropout: 0.5", '    kind: "holding:Holding"')
    made.ok("dvc", "repro")
    made.ok("git", "add", "-A")
    made.ok("git", "commit", "-qm", "Run it with a model that waits")
    made.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    return made


@pytest.fixture
def holdable(_holdable, tmp_path):
    return _holdable.copied_to(tmp_path / "project")


@pytest.fixture
def start(holdable):
    """Start a command of the project; what still runs at the end of the test is ended."""
    started = []

    def start(*command, **environment):
        started.append(Running(holdable, *command, **environment))
        return started[-1]

    yield start
    for each in started:
        each.release()
        with suppress(OSError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


def outputs(project):
    return project.files("artifacts", "data", "dvc.lock")


@pytest.mark.parametrize(
    ("stage", "phase", "name"),
    [
        ("fit", "import torch", "SIGTERM"),
        ("load-data", "import sklearn", "SIGINT"),
        ("fit", "start-up", "SIGHUP"),
        ("fit", "training", "SIGTERM"),
        ("fit", "training", "SIGHUP"),
        ("fit", "validation", "SIGTERM"),
        ("fit", "publish", "SIGINT"),
    ],
)
def test_a_signal_ends_a_stage_with_its_own_exit_code_and_one_line(holdable, start, stage, phase, name):
    before = outputs(holdable)
    running = start(sys.executable, "-m", "pipeline", "stage", stage, HOLD=phase)

    running.send(name)
    if phase in ("training", "validation", "publish"):
        assert running.process.poll() is None
        running.release()
    code, said = running.ended()

    assert code == NUMBERS[name]
    assert said.splitlines()[-1].startswith(f"{name}: ")
    assert "Traceback" not in said
    assert phase == "publish" or outputs(holdable) == before


def test_a_second_sigint_does_not_wait(start):
    running = start(sys.executable, "-m", "pipeline", "stage", "fit", HOLD="training")

    running.send("SIGINT")
    assert running.process.poll() is None
    running.send("SIGINT")

    assert running.ended()[0] == 130


def test_what_is_ignored_stays_ignored(holdable, start):
    command = f"trap '' HUP; exec {sys.executable} -m pipeline stage fit"
    running = start("sh", "-c", command, HOLD="training")

    os.kill(running.pid, signal.SIGHUP)
    running.release()

    assert running.ended()[0] == 0


def test_a_stage_that_dvc_runs_leaves_the_old_outputs_and_the_same_command_goes_on(holdable, start):
    before = outputs(holdable)
    running = start(*REPRO, HOLD="training")

    running.send("SIGTERM")
    running.release()
    code, said = running.ended()

    assert code != 0
    assert "exited with 143" in said
    assert outputs(holdable) == before
    holdable.ok(*REPRO)


@pytest.mark.parametrize(
    ("phase", "name", "shell"),
    [
        ("import typer", "SIGKILL", "/bin/sh"),  # before the stage can look who started it
        ("training", "SIGKILL", "/bin/sh"),
        ("training", "SIGTERM", "/bin/bash"),
    ],
)
def test_a_stage_goes_when_dvc_is_killed_and_dvc_can_be_started_again_at_once(
    holdable, start, phase, name, shell
):
    holdable.edit("dvc.yaml", "stage fit", "stage fit || exit 1")  # so that the shell stays between
    running = start(*REPRO, HOLD=phase, SHELL=shell)

    running.process.send_signal(signal.Signals[name])
    running.process.wait(LIMIT_SECONDS)
    assert not is_gone(running.pid)
    again = subprocess.Popen(
        REPRO,
        cwd=holdable.folder,
        env=holdable.environment | {"PYTHONPATH": str(holdable.folder)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    if phase == "training":
        wait_until(running.is_signalled)
    running.release()

    wait_until(lambda: is_gone(running.pid))
    said = again.communicate(timeout=LIMIT_SECONDS)[1]
    assert again.returncode == 0, said
    assert "fit" not in holdable.ok("dvc", "status", "fit")


def test_a_flow_without_an_api_ends_likewise_and_dvc_is_left_in_order(holdable, start):
    holdable.ok("dvc", "repro", "create-artifact-dir")
    before = outputs(holdable)
    running = start(sys.executable, "-m", "pipeline", "run", HOLD="training")

    running.send("SIGINT")
    running.release()
    code, said = running.ended()

    assert code == 130
    assert said.splitlines()[-1].startswith("SIGINT: ")
    assert outputs(holdable) == before
    assert (holdable.folder / ".dvc/tmp/rwlock").read_text() == "{}"
    holdable.ok(*REPRO)


def test_dvc_is_not_broken_off_while_it_records(holdable, start):
    running = start(sys.executable, "-m", "pipeline", "run", HOLD="dvc.lock")

    running.send("SIGTERM")
    assert running.process.poll() is None
    running.release()

    assert running.ended()[0] == 143
    assert "up to date" in holdable.ok("dvc", "status", "create-artifact-dir")
    assert "up to date" not in holdable.ok("dvc", "status", "fit")


@pytest.mark.parametrize("torn", ["dvc.lock", "rwlock"])
@pytest.mark.parametrize("command", [REPRO, (sys.executable, "-m", "pipeline", "run")])
def test_what_a_kill_tears_of_what_dvc_writes_is_mended(holdable, start, command, torn):
    before = (holdable.folder / "dvc.lock").read_bytes()
    running = start(*command, HOLD=f"torn {torn}")
    path = holdable.folder / ("dvc.lock" if torn == "dvc.lock" else ".dvc/tmp/rwlock")
    assert path.stat().st_size == 5

    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait(LIMIT_SECONDS)

    wait_until(lambda: is_gone(running.pid))
    wait_until(lambda: not path.exists() or path.stat().st_size != 5)
    if torn == "dvc.lock":
        assert path.read_bytes() == before
    holdable.ok(*REPRO)
    assert "fit" not in holdable.ok("dvc", "status", "fit")


TIMED = """
from prefect import flow
from pipeline.engine.reproduce import reproduce
from pipeline.flows.tasks import TASKS, hide_expected_tracebacks

@flow(name="timed", validate_parameters=False)
def timed():
    hide_expected_tracebacks()
    TASKS["fit"].with_options(timeout_seconds=3600)(reproduce)

timed()
"""


def states(address):
    """The names of the states that flows ended in, oldest first."""
    body = json.dumps({"sort": "START_TIME_ASC"}).encode()
    request = urllib.request.Request(  # noqa: S310  loopback
        f"{address}/flow_runs/filter", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310  loopback
        return [run["state_name"] for run in json.load(answer)]


def test_a_flow_saves_before_prefect_ends_it_as_it_would(holdable, start, server):
    (holdable.folder / "timed.py").write_text(TIMED)
    known = len(states(server))

    ended = start(sys.executable, "-m", "pipeline", "run", HOLD="training", PREFECT_API_URL=server)
    ended.send("SIGTERM")
    assert ended.process.poll() is None
    ended.release()
    code, said = ended.ended()
    assert code == 143
    assert "SIGTERM: stopped after epoch 0" in said

    timed = start(sys.executable, "timed.py", HOLD="training", PREFECT_API_URL=server)
    timed.send("SIGALRM")  # as Prefect's timer does when the time is up
    assert timed.process.poll() is None
    timed.release()
    assert timed.ended()[0] == 1

    assert states(server)[known:] == ["Crashed", "TimedOut"]
    assert (holdable.folder / ".dvc/tmp/rwlock").read_text() == "{}"
