"""The heartbeat: its content, its interval, and runs that continue without it."""

import json
import os
import shutil
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from stages.contracts.events import Progress
from stages.contracts.history import History, Split
from stages.runs import HeartbeatRenderer, State, open_store, read_beat, runs
from stages.system.processes import ProcessIdentity

BEATING = """
import sys, time
from pathlib import Path
from stages.contracts.events import Progress
from stages.runs import HeartbeatRenderer, open_store
with open_store(Path(sys.argv[1]), {}) as store:
    heart, progress = HeartbeatRenderer(store.path, 0.0), Progress(epochs=9, epoch=3, batches=500)
    heart.start(progress)
    print("ready", flush=True)
    while True:
        progress.batch += 1
        heart.step(progress)
"""


@pytest.mark.parametrize(("interval", "written"), [(3600.0, [0, 0]), (0.0, [7, 8])])
def test_step_is_written_after_the_interval(interval, written, tmp_path):
    progress = Progress(epochs=9, epoch=1, batches=50)
    heart = HeartbeatRenderer(tmp_path, interval_seconds=interval)
    heart.start(progress)
    steps = []

    for progress.batch in (7, 8):
        heart.step(progress)
        steps.append(read_beat(tmp_path).step)

    assert steps == written


def test_heartbeat_has_owner_and_position_at_start_epoch_end_and_close(tmp_path):
    progress = Progress(epochs=9, epoch=1, batches=50)
    heart = HeartbeatRenderer(tmp_path, interval_seconds=3600.0)
    heart.start(progress)
    assert (read_beat(tmp_path).epoch, read_beat(tmp_path).step) == (1, 0)

    progress.split, progress.batch = Split.VALID, 8
    heart.epoch_end(progress, History())
    assert (read_beat(tmp_path).split, read_beat(tmp_path).step) == ("valid", 8)
    progress.epoch = 2
    heart.close()
    beat = read_beat(tmp_path)
    assert (beat.owner, beat.epoch, beat.epochs, beat.steps) == (ProcessIdentity.of_this_process(), 2, 9, 50)
    assert abs(beat.time - datetime.now(UTC)) < timedelta(minutes=10)


def test_run_continues_if_its_heartbeat_cannot_be_written(tmp_path):
    missing = tmp_path / "missing"
    heart = HeartbeatRenderer(missing, interval_seconds=0)

    heart.start(Progress(epochs=1))
    heart.step(Progress(epochs=1))
    heart.close()

    assert not missing.exists()
    assert read_beat(missing) is None


def test_heartbeat_is_always_complete_and_is_kept_after_a_kill(tmp_path, process):
    with process(BEATING, tmp_path) as worker:
        (run,) = runs(tmp_path)
        for _ in range(500):
            assert read_beat(run.path).epochs == 9
        (run,) = runs(tmp_path)
        assert (run.state, run.owner.pid, run.has_started, run.is_stalled) == (
            State.RUNNING,
            worker.pid,
            True,
            False,
        )
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()

    (run,) = runs(tmp_path)
    assert (run.state, run.beat.epoch) == (State.KILLED, 3)
    assert run.beat.step > 0
    assert run.owner.pid == worker.pid
    assert run.owner.has_ended()


def test_heartbeat_of_the_previous_process_is_ignored(tmp_path, process):
    with process(BEATING, tmp_path):
        pass

    with open_store(tmp_path, {}) as store:
        (run,) = runs(tmp_path)
        assert run.state is State.RUNNING
        assert not run.has_started
        HeartbeatRenderer(store.path).start(Progress(epochs=1))
        assert runs(tmp_path)[0].has_started


def test_running_run_without_a_heartbeat_for_two_minutes_is_stalled(tmp_path):
    with open_store(tmp_path, {}) as store:
        HeartbeatRenderer(store.path).start(Progress(epochs=1))
        assert not runs(tmp_path)[0].is_stalled
        _age(store.path)

        (run,) = runs(tmp_path)
        assert (run.state, run.is_stalled) == (State.RUNNING, True)

    assert not runs(tmp_path)[0].is_stalled


def test_reused_process_id_is_not_the_same_process():
    here = ProcessIdentity.of_this_process()

    assert not here.has_ended()
    assert ProcessIdentity(here.pid, here.host, here.boot, "1").has_ended()
    assert ProcessIdentity(here.pid, here.host, "before the power cut", here.started).has_ended()
    assert not ProcessIdentity(here.pid, "another.host", "", "").has_ended()


def test_damaged_heartbeat_is_read_as_none(tmp_path):
    for text in ("", "{", "[]", "{}", json.dumps({"pid": 1})):
        (tmp_path / "heartbeat.json").write_text(text)
        assert read_beat(tmp_path) is None
    shutil.rmtree(tmp_path)
    assert read_beat(tmp_path) is None


def _age(store):
    for path in [*store.iterdir(), store]:
        os.utime(path, (time.time() - 120, time.time() - 120))
