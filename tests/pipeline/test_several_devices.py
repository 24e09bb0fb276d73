"""The stage fit on several devices: one rank for each, in the project of a user."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import wait_until

TOLERANCE = 1e-5
TWO = "[cpu, cpu]"


def use_devices(project, devices, *, epochs=2, dropout=True, batch_size=16):
    """Set the devices of *project*, and train on small batches, so that an epoch has many steps."""
    project.edit("params.yaml", "device: auto", f"device: {devices}")
    project.edit("params.yaml", "num_epochs: 2", f"num_epochs: {epochs}")
    project.edit("params.yaml", "batch_size: 32", f"batch_size: {batch_size}")
    if not dropout:
        project.edit("params.yaml", "dropout: 0.5", "dropout: 0.0")
    project.ok("git", "commit", "-qam", f"Train on {devices}")


def start(project, *command):
    """Start *command* in a process group of its own, with its output in a file."""
    with (project.folder.parent / f"{project.folder.name}.out").open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=project.folder,
            env=project.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def read_output(project):
    return (project.folder.parent / f"{project.folder.name}.out").read_text(errors="replace")


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
    other_project.ok("dvc", "repro")

    found, expected = (
        json.loads((each.folder / "artifacts/metrics.json").read_text()) for each in (project, other_project)
    )
    assert found["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
    assert found["train"] == pytest.approx(expected["train"], abs=TOLERANCE)
    assert "up to date" in project.ok("dvc", "repro")


def test_sharded_devices_train_what_one_trains(project, other_project):
    for each in (project, other_project):
        use_devices(each, TWO if each is project else "cpu", dropout=False, batch_size=64)
    project.edit("params.yaml", f"device: {TWO}", f"device: {TWO}\n  strategy: fsdp")

    project.ok("dvc", "repro")
    other_project.ok("dvc", "repro")

    found, expected = (
        json.loads((each.folder / "artifacts/metrics.json").read_text()) for each in (project, other_project)
    )
    assert found["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
    assert project.files("artifacts/plots").keys() == other_project.files("artifacts/plots").keys()
    assert "up to date" in project.ok("dvc", "repro")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_killed_rank_is_named_and_the_run_resumes_to_the_same_bytes(rank, project, other_project):
    use_devices(project, TWO, epochs=4)
    use_devices(other_project, TWO, epochs=4)
    project.ok("dvc", "repro")

    process = start(other_project, sys.executable, "-m", "pipeline", "run")
    wait_for_epoch(other_project, process, 2)
    find_rank(process, rank).kill()

    assert process.wait(60) == 1
    assert f"rank {rank} (cpu): was killed by SIGKILL" in read_output(other_project)
    wait_until(lambda: not ranks_left(other_project), lambda: ranks_left(other_project))
    other_project.ok("dvc", "repro")
    assert other_project.files("dvc.lock", "artifacts") == project.files("dvc.lock", "artifacts")


@pytest.mark.parametrize("target", [pytest.param("rank 0", marks=pytest.mark.long), "rank 1", "command"])
def test_termination_of_any_process_saves_the_run_and_exits_with_143(target, project):
    use_devices(project, TWO, epochs=50)

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
