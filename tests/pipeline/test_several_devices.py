"""The stage fit on several devices: one rank for each, in the project of a user."""

import json
import os
import signal
import sys
from contextlib import redirect_stdout
from io import StringIO

import psutil
import pytest
from waiting import wait_until

from pipeline.engine.reproduce import reproduce
from stages.renderers import NoRenderer
from stages.renderers.plain import format_epoch

TOLERANCE = 1e-5
TWO = "[cpu, cpu]"


def use_devices(project, devices, *, strategy="auto", epochs=2, dropout=True, batch_size=16):
    """Set the devices of *project*, and train on small batches, so that an epoch has many steps."""
    project.edit("params.yaml", "device: auto", f"device: {devices}\n  strategy: {strategy}")
    project.edit("params.yaml", "num_epochs: 2", f"num_epochs: {epochs}")
    project.edit("params.yaml", "batch_size: 32", f"batch_size: {batch_size}")
    if not dropout:
        project.edit("params.yaml", "dropout: 0.5", "dropout: 0.0")
    project.ok("git", "commit", "-qam", f"Train on {devices}")


def start(project, *command):
    """Start *command* with its output in the file that `read_output` reads."""
    return project.start(*command, log=project.folder.with_suffix(".out"))


def read_output(project):
    return project.folder.with_suffix(".out").read_text(errors="replace")


def find_rank(process, rank):
    """Return the process of *rank* below *process* when the run has a checkpoint or is in its loop."""

    def find():
        for each in psutil.Process(process.pid).children(recursive=True):
            is_rank = "rank_process" not in each.cmdline() and each.environ().get("RANK") == str(rank)
            if is_rank and "pipeline" in each.cmdline():
                return each
        return None

    return wait_until(find, process=process)


def wait_for_epoch(project, process, epoch=1):
    """Wait until the run in *project* has logged *epoch*."""
    logs = f".runs/*/train/epoch-{epoch}/Loss.log"
    wait_until(
        lambda: any(path.stat().st_size for path in project.folder.glob(logs)),
        lambda: read_output(project),
        process,
    )


def ranks_left(project):
    """Return the processes that run in *project*."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.cwd() == str(project.folder) and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
        except psutil.Error:
            continue
    return found


def test_two_devices_train_what_one_trains_and_dvc_records_it(project, other_project):
    use_devices(project, TWO, dropout=False, batch_size=64)
    use_devices(other_project, "cpu", dropout=False, batch_size=64)

    project.ok("dvc", "repro")
    assert other_project.learner("run").code == 0

    found, expected = (
        json.loads((each.folder / "artifacts/metrics.json").read_text()) for each in (project, other_project)
    )
    assert found["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
    assert found["train"] == pytest.approx(expected["train"], abs=TOLERANCE)
    assert "up to date" in project.ok("dvc", "repro")


@pytest.mark.long
def test_sharded_devices_train_what_one_trains(project, other_project):
    use_devices(project, TWO, strategy="fsdp", dropout=False, batch_size=64)
    use_devices(other_project, "cpu", dropout=False, batch_size=64)

    project.ok("dvc", "repro")
    other_project.ok("dvc", "repro")

    found, expected = (
        json.loads((each.folder / "artifacts/metrics.json").read_text()) for each in (project, other_project)
    )
    assert found["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
    assert project.files("artifacts/plots").keys() == other_project.files("artifacts/plots").keys()
    assert "up to date" in project.ok("dvc", "repro")


@pytest.mark.parametrize(
    ("strategy", "rank"),
    [
        ("ddp", 1),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("ddp", 0), ("fsdp", 0), ("fsdp", 1))),
    ],
)
def test_killed_rank_is_named_and_the_run_resumes_to_the_same_bytes(strategy, rank, project, other_project):
    for each in (project, other_project):
        use_devices(each, TWO, strategy=strategy, epochs=4)
    project.ok("dvc", "repro")

    process = start(other_project, sys.executable, "-m", "pipeline", "run")
    wait_for_epoch(other_project, process, 2)
    find_rank(process, rank).kill()

    assert process.wait(60) == 1
    assert f"rank {rank} (cpu): was killed by SIGKILL" in read_output(other_project)
    wait_until(lambda: not ranks_left(other_project), lambda: ranks_left(other_project))
    other_project.ok("dvc", "repro")
    assert other_project.files("dvc.lock", "artifacts") == project.files("dvc.lock", "artifacts")


@pytest.mark.parametrize(
    ("target", "strategy"),
    [
        ("rank 1", "ddp"),
        ("command", "fsdp"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("rank 0", "ddp"), ("rank 1", "fsdp"))),
    ],
)
def test_termination_of_any_process_saves_the_run_and_exits_with_143(target, strategy, project):
    use_devices(project, TWO, strategy=strategy, epochs=50)

    process = start(project, sys.executable, "-m", "pipeline", "run")
    wait_for_epoch(project, process)
    pid = process.pid if target == "command" else find_rank(process, int(target[-1])).pid
    os.kill(pid, signal.SIGTERM)

    assert process.wait(60) == 143, read_output(project)
    assert "stopped after epoch" in read_output(project)
    assert "Traceback" not in read_output(project)
    assert list(project.folder.glob(".runs/*/steps/trainer-*")) or list(
        project.folder.glob(".runs/*/checkpoint/trainer-*")
    )
    wait_until(lambda: not ranks_left(project), lambda: ranks_left(project))


class EpochRecorder(NoRenderer):
    """A renderer that keeps the line of each epoch, and how much of it was trained at each step."""

    def __init__(self):
        self.lines, self.batches = [], []

    def step(self, progress):
        self.batches.append((progress.epoch, progress.batch, progress.batches))

    def epoch_end(self, progress, history):
        self.lines.append(format_epoch(progress, history))


def test_renderer_and_output_of_the_calling_process_show_the_run_of_the_ranks(project, monkeypatch):
    use_devices(project, TWO, epochs=3)
    project.ok("dvc", "repro", "build-learner")
    monkeypatch.chdir(project.folder)
    recorder = EpochRecorder()

    with redirect_stdout(StringIO()) as output:
        reproduce("fit", recorder)

    assert [line.split()[1] for line in recorder.lines] == ["1/3", "2/3", "3/3"]
    assert all(f"{line} | " in output.getvalue() for line in recorder.lines)  # telemetry follows
    assert recorder.batches
    assert all(0 <= batch <= batches for _, batch, batches in recorder.batches)


def test_error_in_a_rank_is_reported_once_with_its_device(project):
    use_devices(project, TWO)
    model = project.folder / "stages/models/steps.py"
    failing = 'if __import__("os").environ.get("RANK") == "1": raise ValueError("a mistake of mine")'
    old = "        item = self.forward_classification(batch)\n"
    model.write_text(model.read_text().replace(old, f"        {failing}\n{old}", 1))

    done = project.learner("run")

    assert done.code == 1
    assert done.text.count("ValueError: a mistake of mine") == 1, done.text
    assert "rank 1 (cpu): " in done.text
