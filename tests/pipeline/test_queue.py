"""Experiments in DVC's queue, whose worker is a process of its own."""

import json
import shutil
import subprocess
from contextlib import suppress

import pytest
from waiting import wait_until

from stages.runs import runs

CHANGE = ("-S", "fit.num_epochs=12", "-S", "fit.batch_size=64")


@pytest.fixture
def queue(finished):
    """A project with a queue, whose worker is ended with the test."""
    yield finished
    finished.run("dvc", "queue", "stop", "--kill")


def lock_of(project, name):
    """Return the dvc.lock of experiment *name*; empty if it has not finished."""
    refs = project.ok("git", "for-each-ref", "--format=%(refname)", f"refs/exps/**/{name}").split()
    return project.ok("git", "show", f"{refs[0]}:dvc.lock") if refs else ""


def at_work(project):
    """Return the progress of the run that trains, from its heartbeat; empty if no run trains."""
    for path in project.folder.glob(".runs/*/heartbeat.json"):
        with suppress(ValueError, OSError):
            beat = json.loads(path.read_text())
            if beat["epoch"] >= 2 and not (path.parent / "finished.json").exists():
                return beat
    return None


def test_experiment_killed_in_the_queue_resumes_to_the_same_lockfile(queue, tmp_path):
    straight = queue.copied_to(tmp_path / "straight")
    straight.ok("dvc", "exp", "run", "--temp", "-n", "straight", *CHANGE)
    shutil.rmtree(queue.folder / ".runs")

    queue.ok("dvc", "exp", "run", "--queue", "-n", "queued", *CHANGE)
    with subprocess.Popen(["dvc", "queue", "start"], cwd=queue.folder, env=queue.environment):
        wait_until(lambda: at_work(queue))
    queue.ok("dvc", "queue", "kill", "queued")
    wait_until(lambda: "Failed" in queue.ok("dvc", "queue", "status"))
    [store] = runs(queue.folder / ".runs")
    assert not lock_of(queue, "queued")
    assert list(store.path.glob("steps/trainer-*")) or list(store.path.glob("checkpoint/trainer-[2-9]*"))

    queue.ok("dvc", "exp", "run", "--queue", "-n", "again", *CHANGE)
    queue.ok("dvc", "queue", "start")
    wait_until(lambda: lock_of(queue, "again"))

    assert "resuming run " in queue.ok("dvc", "queue", "logs", "again")
    assert lock_of(queue, "again") == lock_of(straight, "straight")
