"""The stage fit on several devices: one rank for each, in the project of a user.

The model waits while the file ``hold`` exists, so that a test can act while the ranks train.
"""

import json
import os
import signal
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from waiting import LIMIT_SECONDS, has_exited, wait_until

from pipeline.engine.reproduce import reproduce
from pipeline.engine.stage_run import run_stage
from stages.renderers import NoRenderer
from stages.renderers.plain import format_epoch

TOLERANCE = 1e-5
HELD_STEP = 8
"""The step at which each rank waits, the second one of epoch 2."""
MODEL = f"""
import os, time
from pathlib import Path
from torch import nn
from stages.models.steps import ClassificationStep

class Holding(ClassificationStep, nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        if self.steps == {HELD_STEP}:
            Path("held-" + os.environ.get("RANK", "0")).write_text(str(os.getpid()))
            while Path("hold").exists():
                time.sleep(0.01)
        if Path("read").exists() and os.environ.get("RANK") == "1":
            Path("read").read_text()
        if Path("fail").exists() and os.environ.get("RANK") == "1":
            raise ValueError("a mistake of mine")
        return super().train_step(batch)
"""
BATCH_SIZE, EPOCHS = 256, 3
"""An epoch has six steps. Each waits for the other rank, which takes long on a busy machine."""


@pytest.fixture(scope="module")
def built(tmp_path_factory, checked_out):
    """Return a project for two devices in which only `fit` and `save-model` have not run; tests copy it."""
    project = checked_out(tmp_path_factory.mktemp("built") / "project")
    (project.folder / "holding.py").write_text(MODEL)
    (project.folder / ".git/info/exclude").write_text("hold\nheld-*\nfail\nread\n")
    project.edit("params.yaml", "    kind: cnn\n    dropout: 0.5", '    kind: "holding:Holding"')
    project.edit("params.yaml", "num_epochs: 20", f"num_epochs: {EPOCHS}")
    project.edit("params.yaml", "batch_size: 32", f"batch_size: {BATCH_SIZE}")
    project.edit("params.yaml", "device: auto", "device: [cpu, cpu]")
    project.add_deps()
    project.ok("git", "add", "-A")
    project.ok("git", "commit", "-qm", "Train on two devices")
    project.call("run", "build-learner").ok()
    return project


@pytest.fixture
def project(built, tmp_path):
    """Return a project that is ready to train on two devices."""
    return built.copied_to(tmp_path / "project")


class EpochRecorder(NoRenderer):
    """A renderer that keeps the line of each epoch, and how much of it was trained at each step."""

    def __init__(self):
        super().__init__()
        self.lines, self.batches = [], []

    def step(self, progress):
        self.batches.append((progress.epoch, progress.batch, progress.batches))

    def epoch_end(self, progress, history):
        self.lines.append(format_epoch(progress, history))


class Uninterrupted(NamedTuple):
    """A project after `fit` on two ranks, with what it showed and printed in the calling process."""

    project: Any
    recorder: EpochRecorder
    output: str


@pytest.fixture(scope="module")
def uninterrupted(built, tmp_path_factory):
    """Return a run of all epochs on two ranks."""
    project = built.copied_to(tmp_path_factory.mktemp("uninterrupted") / "project")
    recorder = EpochRecorder()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
        patch.chdir(project.folder)
        reproduce("fit", run=partial(run_stage, renderer=recorder))
    return Uninterrupted(project, recorder, output.getvalue())


def use(project, devices, strategy="auto"):
    """Set the devices and the strategy of *project*."""
    project.edit("params.yaml", "device: [cpu, cpu]", f"device: {devices}\n  strategy: {strategy}")


@pytest.fixture
def start(project):
    """Return a function that starts `learner run` and waits until both ranks wait in the second epoch.

    The checkpoint of the first epoch, which a thread of rank 0 writes, is on disk then.
    """
    started = []

    def start():
        (project.folder / "hold").touch()
        started.append(project.start_fork("pipeline", "run", log=log_of(project)))
        wait_until(lambda: all(map(find_rank, (project, project), (0, 1))), lambda: read_log(project))
        saved = project.folder / ".runs"
        wait_until(lambda: list(saved.glob("*/checkpoint/trainer-1.*")), lambda: read_log(project))
        return started[-1]

    yield start
    for process in started:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def find_rank(project, rank):
    """Return the process id of *rank*, which waits."""
    return int((project.folder / f"held-{rank}").read_text())


def log_of(project):
    return project.folder.with_suffix(".out")


def read_log(project):
    return log_of(project).read_text(errors="replace")


def ranks_have_exited(project):
    return all(has_exited(find_rank(project, rank)) for rank in (0, 1))


def read_metrics(project):
    return json.loads((project.folder / "artifacts/metrics.json").read_text())


def test_two_devices_train_what_one_trains_and_dvc_records_it(uninterrupted, project, monkeypatch):
    use(project, "cpu")
    monkeypatch.chdir(project.folder)

    reproduce("fit", run=partial(run_stage, renderer=EpochRecorder()))

    found, expected = read_metrics(uninterrupted.project), read_metrics(project)
    assert found["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
    assert found["train"] == pytest.approx(expected["train"], abs=TOLERANCE)
    assert "fit" not in uninterrupted.project.dvc("status", "fit").ok()


@pytest.mark.long
def test_sharded_devices_train_what_one_trains(uninterrupted, project):
    use(project, "[cpu, cpu]", "fsdp")

    project.dvc("repro").ok()

    found, expected = read_metrics(project), read_metrics(uninterrupted.project)
    assert found["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
    assert project.files("artifacts/plots").keys() == uninterrupted.project.files("artifacts/plots").keys()
    assert "up to date" in project.dvc("status").ok()


def test_renderer_and_output_of_the_calling_process_show_the_run_of_the_ranks(uninterrupted):
    """Epochs that ended before the first heartbeat was read, which is read each second, are not shown."""
    recorder = uninterrupted.recorder

    shown = [line.split()[1] for line in recorder.lines]
    assert shown == [f"{epoch}/{EPOCHS}" for epoch in range(EPOCHS - len(shown) + 1, EPOCHS + 1)] != []
    assert all(f"{line} | " in uninterrupted.output for line in recorder.lines)  # telemetry follows
    assert recorder.batches
    assert all(0 <= batch <= batches for _, batch, batches in recorder.batches)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_is_named_and_the_run_resumes_to_the_same_bytes(rank, uninterrupted, project, start):
    process = start()

    os.kill(find_rank(project, rank), signal.SIGKILL)
    (project.folder / "hold").unlink()

    assert process.wait(LIMIT_SECONDS) == 1
    assert f"rank {rank} (cpu): was killed by SIGKILL" in read_log(project)
    wait_until(lambda: ranks_have_exited(project))
    assert "resuming run" in project.dvc("repro", "fit").ok()
    names = "artifacts/checkpoint", "artifacts/train", "artifacts/valid", "artifacts/metrics.json"
    assert project.files(*names) == uninterrupted.project.files(*names)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_sharded_run_resumes_after_a_kill_of_a_rank(rank, built, project, start, tmp_path):
    uninterrupted = built.copied_to(tmp_path / "uninterrupted")
    for each in (project, uninterrupted):
        use(each, "[cpu, cpu]", "fsdp")
    uninterrupted.dvc("repro").ok()
    process = start()

    os.kill(find_rank(project, rank), signal.SIGKILL)
    (project.folder / "hold").unlink()

    assert process.wait(LIMIT_SECONDS) == 1
    project.dvc("repro").ok()
    assert project.files("dvc.lock", "artifacts") == uninterrupted.files("dvc.lock", "artifacts")


@pytest.mark.long  # test_rank_launcher.py stops ranks that are short programs
@pytest.mark.parametrize(
    ("target", "strategy"),
    [("command", "fsdp"), ("rank 0", "ddp"), ("rank 1", "ddp"), ("rank 1", "fsdp")],
)
def test_termination_of_any_process_saves_the_run_and_exits_with_143(target, strategy, project, start):
    use(project, "[cpu, cpu]", strategy)
    project.edit("params.yaml", f"num_epochs: {EPOCHS}", "num_epochs: 50")  # ranks agree within 128 steps
    process = start()

    pid = process.pid if target == "command" else find_rank(project, int(target[-1]))
    os.kill(pid, signal.SIGTERM)
    (project.folder / "hold").unlink()

    assert process.wait(LIMIT_SECONDS) == 143, read_log(project)
    assert "stopped after epoch" in read_log(project)
    assert "Traceback" not in read_log(project)
    runs = project.folder / ".runs"
    assert [*runs.glob("*/steps/trainer-*"), *runs.glob("*/checkpoint/trainer-*")]
    wait_until(lambda: ranks_have_exited(project))


@pytest.mark.long  # test_rank_launcher.py has errors of ranks that are short programs
def test_error_in_a_rank_is_reported_once_with_its_device(project):
    Path(project.folder / "fail").touch()

    done = project.call("run")

    assert done.code == 1
    assert done.text.count("ValueError: a mistake of mine") == 1, done.text
    assert "rank 1 (cpu): " in done.text


@pytest.mark.long  # tests/pipeline/project/test_dependencies.py has a process of one rank
def test_file_that_one_rank_reads_without_a_dependency_is_reported_once(project):
    Path(project.folder / "read").touch()

    done = project.call("run")

    assert done.code == 1
    assert done.text.count("fit reads files that its deps in dvc.yaml lack") == 1, done.text
    assert done.text.endswith("\n      - read\n")
