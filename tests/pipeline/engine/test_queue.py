"""Experiments in DVC's queue, which a separate worker process runs."""

import json
import shutil
import subprocess
from contextlib import suppress

import pytest
from waiting import wait_until

from stages.runs import runs

CHANGE = ("-S", "fit.num_epochs=40", "-S", "fit.batch_size=64")


@pytest.fixture
def queue(finished):
    """A finished project; the worker of its queue is stopped after the test."""
    yield finished
    finished.run("dvc", "queue", "stop", "--kill")


def read_lockfile(project, name):
    """Return the dvc.lock of experiment *name*; an empty text if it has not finished."""
    refs = project.ok("git", "for-each-ref", "--format=%(refname)", f"refs/exps/**/{name}").split()
    return project.ok("git", "show", f"{refs[0]}:dvc.lock") if refs else ""


def find_progress(project):
    """Return the heartbeat of the run in progress from its second epoch on; None before that."""
    for path in project.folder.glob(".runs/*/heartbeat.json"):
        with suppress(ValueError, OSError):
            beat = json.loads(path.read_text())
            if beat["epoch"] >= 2 and not (path.parent / "finished.json").exists():
                return beat
    return None


@pytest.mark.long
def test_experiment_killed_in_the_queue_resumes_to_the_same_lockfile(queue, tmp_path):
    uninterrupted = queue.copied_to(tmp_path / "uninterrupted")
    uninterrupted.ok("dvc", "exp", "run", "--temp", "-n", "uninterrupted", *CHANGE)
    shutil.rmtree(queue.folder / ".runs")

    queue.ok("dvc", "exp", "run", "--queue", "-n", "queued", *CHANGE)
    with subprocess.Popen(["dvc", "queue", "start"], cwd=queue.folder, env=queue.environment):
        wait_until(lambda: find_progress(queue))
    queue.ok("dvc", "queue", "kill", "queued")
    wait_until(lambda: "Failed" in queue.ok("dvc", "queue", "status"))
    [store] = runs(queue.folder / ".runs")
    assert not read_lockfile(queue, "queued")
    saved = ("steps/trainer-*", "checkpoint/trainer-[2-9]*", "checkpoint/trainer-[1-9][0-9]*")
    wait_until(
        lambda: any(list(store.path.glob(pattern)) for pattern in saved),
        lambda: str(list(store.path.rglob("trainer-*"))),
    )

    queue.ok("dvc", "exp", "run", "--queue", "-n", "again", *CHANGE)
    queue.ok("dvc", "queue", "start")
    wait_until(lambda: read_lockfile(queue, "again"))

    assert "resuming run " in queue.ok("dvc", "queue", "logs", "again")
    assert read_lockfile(queue, "again") == read_lockfile(uninterrupted, "uninterrupted")
