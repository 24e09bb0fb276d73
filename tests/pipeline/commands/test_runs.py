"""``learner runs`` lists, shows, prunes and verifies run stores."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from pipeline.commands.runs import all_runs, describe_run, runs_root
from pipeline.project.paths import is_copy
from stages.contracts.events import Progress
from stages.records import FullPrecision, NamedMpkGzFileRecorder
from stages.runs import Checkpoint, FileCheckpointer, HeartbeatRenderer, open_store

ENTRIES = {"version": "2", "params": {"batch_size": 32, "seed": 42}, "inputs": {"data": "a" * 64}}


def describe_all(root):
    """Return the line of each run below *root*."""
    return [describe_run(run) for run in all_runs(root)]


@pytest.fixture
def folder(tmp_path, open_project):
    """Return an empty folder in which commands run."""
    return open_project(tmp_path)


@pytest.fixture
def root(tmp_path):
    return tmp_path / ".runs"


def create_run(root, entries=ENTRIES, *, epochs=2, finished=True):
    """Create a run with a checkpoint after each of *epochs* epochs, and return its key."""
    with open_store(root, entries) as store:
        checkpointer = FileCheckpointer(store.path / "checkpoint", NamedMpkGzFileRecorder(FullPrecision))
        for epoch in range(1, epochs + 1):
            checkpointer.save(epoch, Checkpoint({"weight": 0.5}, {"step": epoch}, {"step": epoch}))
        HeartbeatRenderer(store.path).start(Progress(epochs=9, epoch=epochs, batch=7))
        if finished:
            store.finish({"epoch": epochs})
    return store.key


def test_list_prints_state_and_progress_of_each_run(folder, root):
    assert folder.call("runs", "list").out == "no run in .runs\n"
    finished = create_run(root)
    interrupted = create_run(root, {"version": "3"}, epochs=1, finished=False)

    with open_store(root, {"version": "4"}) as running:
        printed = folder.call("runs", "list").out.splitlines()
        content = json.loads(folder.call("runs", "list", "--json").out)["data"]

    assert printed[0].split() == ["key", "state", "epochs", "last", "seen", "at", "time", "size", "age"]
    rows = {line.split()[0]: line for line in printed[1:]}
    assert re.match(rf"{finished}  finished +2  +epoch 2 step 7 +[\d: -]+ .* \d+ (min|s)$", rows[finished])
    assert re.match(rf"{interrupted}  interrupted +1  +epoch 1 step 7 ", rows[interrupted])
    assert re.match(rf"{running.key}  running +0  +- ", rows[running.key])
    states = {run["key"]: (run["state"], run["epochs"], run["pid"]) for run in content}
    assert states == {
        finished: ("finished", 2, None),
        interrupted: ("interrupted", 1, None),
        running.key: ("running", 0, os.getpid()),
    }


def test_status_describes_each_run_in_one_line(root):
    assert describe_all(root) == []
    with open_store(root, ENTRIES) as store:
        assert re.fullmatch(
            rf"run {store.key}: running, pid {os.getpid()} on \S+, starting, [\d: -]+", describe_all(root)[0]
        )
        HeartbeatRenderer(store.path).start(Progress(epochs=9, epoch=3, batch=120))
        line = rf"run {store.key}: running, pid {os.getpid()} on \S+, epoch 3 step 120, [\d: -]+"
        assert re.fullmatch(line, describe_all(root)[0])


def test_status_describes_the_newest_checkpoint_of_an_interrupted_run(root):
    key = create_run(root, epochs=0, finished=False)
    assert ", no checkpoint yet, " in describe_all(root)[0]
    create_run(root, epochs=2, finished=False)
    assert ", checkpoint after epoch 2, " in describe_all(root)[0]

    steps = FileCheckpointer(root / key / "steps", NamedMpkGzFileRecorder(FullPrecision))
    for number, (epoch, split, batch) in enumerate([(3, "train", 7), (3, "valid", 1), (2, "train", 9)], 1):
        place = {"epoch": epoch, "split": split, "iteration": batch, "now": {"torch": torch.zeros(3)}}
        steps.save(number, Checkpoint({"weight": 0.5}, {}, {}, {"place": place}))

    assert ", checkpoint in epoch 3, after batch 1 of validation, " in describe_all(root)[0]
    (steps.directory / "trainer-2.mpk.gz").write_bytes(b"no record")
    assert ", checkpoint in epoch 3, after batch 7 of training, " in describe_all(root)[0]


def test_status_lists_the_checkpoints_of_an_interrupted_run_and_not_those_of_the_outputs(project):
    create_run(project.folder / ".runs", finished=False)

    printed = project.call("status").out

    assert "no checkpoint in artifacts/checkpoint until fit has finished\n" in printed
    assert re.search(
        r"^run \w+: interrupted, epoch 2 step 7, checkpoint after epoch 2, ", printed, re.MULTILINE
    )


def test_show_compares_the_key_with_the_current_params_and_inputs(finished):
    [root] = (finished.folder / ".runs").glob("*/key.json")
    same = finished.call("runs", "show", root.parent.name[:4]).ok()
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")
    edited = finished.call("runs", "show").ok()
    content = json.loads(finished.call("runs", "show", "--json").out)["data"]
    shutil.rmtree(finished.folder / "data/prepared")
    missing = finished.call("runs", "show").ok()
    (finished.folder / "artifacts/learner/learner.json").write_text("[]")
    corrupt = finished.call("runs", "show").ok()
    shutil.rmtree(finished.folder / "artifacts")
    before_the_first_stage = finished.call("runs", "show").ok()

    assert "  params.batch_size: 32\n" in same
    assert "inputs have this key: fit uses this store" in same
    assert re.search(
        r"inputs have the key [0-9a-f]{16}, which differs in\n  params.batch_size: 32 → 64\n", edited
    )
    assert content["differences"] == ["params.batch_size: 32 → 64"]
    assert content["run"]["key"] == root.parent.name
    assert content["entries"] == json.loads(root.read_text())
    assert content["finished"]["epoch"] == 2
    assert re.search("not compared with the current params.yaml and inputs: .*data/prepared", missing)
    for printed in (corrupt, before_the_first_stage):
        assert (
            "not compared with the current params.yaml and inputs: artifacts/learner/learner.json" in printed
        )
        assert "un `dvc repro --force build-learner`" in printed


def test_unknown_or_ambiguous_key_is_refused_with_the_existing_keys(folder, root):
    assert "there is no run in .runs" in folder.call("runs", "show").err
    keys = [create_run(root, {"number": number}, epochs=0) for number in range(20)]
    shared_digit = next(key[0] for key in keys if sum(other[0] == key[0] for other in keys) > 1)

    for command in ("show", "verify"):
        unknown = folder.call("runs", command, "unknown")
        assert unknown.code == 2
        assert all(key in unknown.err for key in keys)
        several = folder.call("runs", command, shared_digit)
        assert several.code == 2
        assert "more than one run in .runs has a key that begins with" in several.err


def test_prune_keeps_the_newest_and_asks_before_it_removes_resumable_runs(folder, root):
    finished = [create_run(root, {"number": number}, epochs=0) for number in range(4)]
    interrupted = create_run(root, {"version": "3"}, epochs=0, finished=False)

    assert folder.call("runs", "prune").out == f"removed {finished[0]}\n"
    assert folder.call("runs", "prune").out == "nothing to remove\n"
    refused = folder.call("runs", "prune", "--all")
    assert refused.code == 1
    assert interrupted in refused.out
    assert (root / interrupted).exists()
    removed = folder.call("runs", "prune", "--all", "--yes", "--keep", "1").out.split()
    assert set(removed) == {"removed", *finished[1:3], interrupted}


def test_verify_reads_every_file_and_lists_the_damaged_ones(folder, root):
    key = create_run(root)
    intact = [*(f"checkpoint/trainer-{epoch}" for epoch in (1, 2)), "9 files with a recorded hash"]
    assert folder.call("runs", "verify").out == "".join(f"run {key}: {name}: intact\n" for name in intact)
    path = root / key / "checkpoint/optim-2.mpk.gz"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (root / key / "checkpoint/trainer-1.mpk.gz").write_bytes(b"no record")
    (root / key / "key.json").unlink()

    broken = folder.call("runs", "verify", key[:5])

    assert broken.code == 1
    assert re.search(r"trainer-1: .*trainer-1\.mpk\.gz", broken.out)
    assert re.search(r"trainer-2: .*optim-2\.mpk\.gz has changed since it was written", broken.out)
    assert re.search(r"key\.json: is missing\n.*: 6 files with a recorded hash: intact", broken.out)


def test_verify_reports_corrupt_results_and_accepts_runs_of_an_older_version(folder, root):
    path = root / create_run(root) / "finished.json"
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 3'))
    corrupt = folder.call("runs", "verify")
    path.write_text('{"epoch": 2}')

    assert corrupt.code == 1
    assert "finished.json: is corrupt. Run `dvc repro --force fit` with the params of" in corrupt.out
    assert "checkpoint/trainer-2: intact\n" in folder.call("runs", "verify").out


ALL_COMMANDS = """
import sys
from pipeline.cli import app
for name in ("list", "show", "verify", "prune"):
    app(["runs", name], standalone_mode=False)
assert "stages.runs.overview" in sys.modules
assert not {"torch", "prefect", "dvc"} & sys.modules.keys()
app(["runs", "show", "unknown"])
"""


def test_runs_commands_load_neither_torch_nor_prefect_nor_dvc(folder, root):
    create_run(root)

    done = folder.run(sys.executable, "-c", ALL_COMMANDS)

    assert "nothing to remove\n" in done.out
    assert "unknown" in done.err


def test_mistake_is_printed_to_standard_error_with_exit_code_2(folder, root):
    key = create_run(root)

    refused = folder.learner("runs", "show", "unknown")

    message = f"error: no run in .runs has a key that begins with 'unknown'. Use one of {key}\n"
    assert (refused.code, refused.out, refused.err) == (2, "", message)


def test_run_stores_are_in_the_current_folder_or_in_dvc_root(monkeypatch, tmp_path):
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert runs_root().resolve() == (Path.cwd() / ".runs").resolve()

    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert runs_root() == tmp_path / ".runs"


def test_messages_below_dvc_have_the_path_of_the_stores_that_others_have(monkeypatch):
    monkeypatch.setenv("DVC_ROOT", str(Path.cwd()))
    assert str(runs_root()) == ".runs"


def test_run_stores_are_beside_a_dvc_folder_above(monkeypatch, tmp_path):
    """`dvc repro` sets DVC_ROOT to that folder, and `learner runs` lists the same stores."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for folder in (".dvc", "first/lab"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "first/lab")

    assert runs_root() == tmp_path / ".runs"
    assert not is_copy()


TRACKER = """
class Recording:
    def __init__(self, directory, fails=False):
        self.file, self.fails = directory / "calls", fails
    def start(self, run):
        if self.fails:
            raise RuntimeError("no connection")
    def log(self, points):
        with self.file.open("a") as file:
            file.write("".join(f"{point.step} " for point in points))
    def finish(self, status, summary):
        self.file.rename(self.file.with_name(status))
"""
EVENTS = [
    {"run": {"name": "a", "params": {}, "tags": {}}},
    {"point": {"step": 1, "values": {"train/Loss": 2.0}, "time": 3.0}},
    {"status": "stopped", "summary": {}},
    {"run": {"name": "a", "params": {}, "tags": {}}},
    {"point": {"step": 2, "values": {"train/Loss": 1.0}, "time": 4.0}},
    {"status": "finished", "summary": {}},
]


def set_logger(folder, arguments):
    logger = f"  loggers: [{{kind: 'recorder:Recording'{arguments}}}]\n"
    (folder.folder / "params.yaml").write_text(f"fit:\n  num_epochs: 2\n{logger}")


def test_sync_sends_what_a_tracker_has_not_received_of_present_and_removed_runs(folder, root):
    (folder.folder / "recorder.py").write_text(TRACKER)
    set_logger(folder, ", fails: true")
    for number in (1, 2):
        key = create_run(root, {"number": number})
        (root / key / "telemetry/Recording").mkdir(parents=True)
        lines = "".join(json.dumps(event) + "\n" for event in EVENTS)
        (root / key / "telemetry/Recording/events.jsonl").write_text(lines)
    pruned = folder.call("runs", "prune", "--keep", "1")

    failed = folder.call("runs", "sync")
    set_logger(folder, "")
    sent = folder.call("runs", "sync")
    nothing = folder.call("runs", "sync")

    assert re.fullmatch(
        r"removed (\w+)\nkept in .runs/telemetry/\1 .* Run `learner runs sync`\n", pruned.ok()
    )
    assert failed.code == 1
    assert failed.out.count(": Recording: RuntimeError: no connection\n") == 2
    assert sent.ok().count(": Recording: sent\n") == 2
    assert (root / key / "telemetry/Recording/finished").read_text() == "1 2 "
    assert nothing.ok() == "nothing to send\n"
    assert not list((root / "telemetry").glob("*"))
