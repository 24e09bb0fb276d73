"""The lines that `learner run --events` prints."""

import json

import pytest
from envelopes import EVENT

FILES = ("dvc.lock", "artifacts")


def read_events(done):
    """Return the events of a finished command, each compared with its schema."""
    events = [json.loads(line) for line in done.out.splitlines()]
    for event in events:
        EVENT.validate(event)
    return events


def names(events, kind, *fields):
    """Return *fields* of each event of that *kind*."""
    return [tuple(event[field] for field in fields) for event in events if event["event"] == kind]


def test_events_follow_a_run_and_change_no_output(project, finished):
    events = read_events(project.call("run", "--events"))

    stages = ("create-artifact-dir", "load-data", "build-learner", "fit", "save-model")
    assert names(events, "stage", "stage", "state") == [
        (stage, state) for stage in stages for state in ("running", "ran")
    ]
    assert names(events, "epoch", "epoch", "epochs") == [(1, 2), (2, 2)]
    assert names(events, "checkpoint", "epoch") == [(1,), (2,)]
    last = {
        name: value
        for epoch, split, name, value in names(events, "metric", "epoch", "split", "metric", "value")
        if (epoch, split) == (2, "valid")
    }
    assert last == json.loads((project.folder / "artifacts/metrics.json").read_text())["valid"]
    assert (events[-1]["event"], events[-1]["ok"]) == ("end", True)
    assert events[-1]["data"]["stages"] == dict.fromkeys(stages, "ran")
    assert project.files(*FILES) == finished.files(*FILES)


def test_events_of_a_resumed_run_begin_after_its_checkpoint(finished):
    events = read_events(finished.call("run", "--events", "-S", "fit.num_epochs=3"))

    assert names(events, "epoch", "epoch", "epochs") == [(3, 3)]
    assert names(events, "checkpoint", "epoch") == [(3,)]
    assert events[-1]["data"]["stages"]["load-data"] == "unchanged"


@pytest.mark.long  # two processes; `test_events_follow_a_run_and_change_no_output` has the events of one
def test_events_of_two_ranks_are_read_from_the_run_store(project):
    events = read_events(project.call("run", "--events", "-S", "fit.device=[cpu,cpu]"))

    assert names(events, "epoch", "epoch", "epochs") == [(1, 2), (2, 2)]
    assert names(events, "checkpoint", "epoch")[-1] == (2,)
    assert events[-1]["ok"]


def test_last_event_of_a_failed_run_has_its_error(finished):
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: two")

    done = finished.call("run", "--events")

    [event] = read_events(done)
    assert done.code == 2
    assert event["error"]["message"].startswith("params.yaml")
