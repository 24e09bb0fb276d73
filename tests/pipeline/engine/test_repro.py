"""`dvc repro` and `learner run` run the stages whose dependencies changed, and no others."""

import gzip
import json

import pytest
from long_tests import long

ALL_STAGES = ("create-artifact-dir", "load-data", "build-learner", "fit", "save-model")


def parse_started_stages(text):
    """Return the stages whose command DVC started, from its output *text*."""
    return [line.split("'")[1] for line in text.splitlines() if line.startswith("Running stage")]


@pytest.mark.long  # the test of the program of README in tests/test_pages.py trains fewer epochs, without DVC
def test_fresh_clone_trains_the_digits_to_97_percent(project):
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 20")
    project.edit("params.yaml", "valid_fraction: 0.8", "valid_fraction: 0.2")
    project.edit("params.yaml", "    hidden_size: 32\n", "")

    text = project.ok("dvc", "repro")

    assert parse_started_stages(text) == list(ALL_STAGES)
    metrics = json.loads((project.folder / "artifacts/metrics.json").read_text())
    assert metrics["valid"]["Accuracy"] >= 97
    assert "= Learner Summary =" in text
    assert gzip.decompress((project.folder / "artifacts/model.mpk.gz").read_bytes()).startswith(
        b"\x83\xa8metadata"
    )


def test_second_repro_runs_no_stage(finished):
    text = finished.dvc("repro").ok()

    assert parse_started_stages(text) == []
    assert "up to date" in finished.dvc("status").ok()
    assert finished.ok("git", "status", "--short") == ""


def test_graph_orders_the_five_stages(finished):
    edges = {
        tuple(line.strip().rstrip(";").replace('"', "").split(" -> "))
        for line in finished.dvc("dag", "--dot").ok().splitlines()
        if "->" in line
    }

    assert edges == {
        ("create-artifact-dir", "build-learner"),
        ("create-artifact-dir", "save-model"),
        ("load-data", "build-learner"),
        ("load-data", "fit"),
        ("load-data", "save-model"),
        ("build-learner", "fit"),
        ("build-learner", "save-model"),
        ("fit", "save-model"),
    }


@pytest.mark.parametrize(
    ("name", "old", "new", "stages"),
    [
        long(  # test_run_prints_the_outcome_of_each_stage
            *("params.yaml", "recorder: default", "recorder: compact"),
            ["create-artifact-dir", "save-model"],
        ),
        long(
            *("params.yaml", "batch_size: 32", "batch_size: 512"),
            ["create-artifact-dir", "fit", "save-model"],
        ),
        ("stages/save_model.py", 'VERSION = "', 'VERSION = "9', ["save-model"]),
        ("stages/learner/loop.py", '"""The training loop.', '"""The training loop!', []),
        long("stages/models/cnn.py", "nn.ReLU()", "nn.Tanh()", ["build-learner", "fit", "save-model"]),
    ],
)
def test_edit_reruns_only_the_stages_that_depend_on_it(finished, name, old, new, stages):
    before = finished.files("artifacts", "data")

    finished.edit(name, old, new)
    outcomes = read_outcomes(finished.call("run"))

    assert outcomes == dict.fromkeys(ALL_STAGES, "unchanged") | dict.fromkeys(stages, "ran")
    finished.edit(name, new, old)
    restored = read_outcomes(finished.call("run"))
    assert {name for name, outcome in restored.items() if outcome != "unchanged"} == set(stages)
    ran = {name for name, outcome in restored.items() if outcome == "ran"}
    assert ran <= {"create-artifact-dir"}  # whose outputs the run-cache does not have
    assert finished.files("artifacts", "data") == before


def read_outcomes(run):
    """Return the outcome of each stage that `learner run` has printed."""
    return dict(line.split(": ") for line in run.ok().splitlines() if line.split(":")[0] in ALL_STAGES)


def test_files_that_belong_to_no_stage_are_removed_unless_params_keep_them(finished):
    for name in ("old", "mine"):
        (finished.folder / "artifacts" / name).mkdir()
    finished.edit("params.yaml", "keep: []", "keep: [mine]")

    finished.call("run", "create-artifact-dir").ok()

    assert not (finished.folder / "artifacts/old").exists()
    assert (finished.folder / "artifacts/mine").exists()
    assert (finished.folder / "artifacts/checkpoint/trainer-2.mpk.gz").exists()


def test_learner_is_built_again_with_the_kernels_of_another_value_of_portable(finished):
    finished.edit("params.yaml", "portable: true", "portable: false")

    printed = finished.call("run", "build-learner").ok()

    assert "build-learner: ran" in printed


def test_layout_lists_every_entry_of_the_artifact_directory(finished):
    layout = json.loads((finished.folder / "artifacts/layout.json").read_text())

    assert {path.name for path in (finished.folder / "artifacts").iterdir()} <= set(layout["entries"])


@pytest.mark.long  # tests/test_save_model.py: test_best_epoch_is_that_of_the_configured_metric
def test_best_epoch_can_be_saved_instead_of_the_last(finished):
    finished.edit("params.yaml", "epoch: last", "epoch: best")
    finished.edit("params.yaml", "learning_rate: 0.001", "learning_rate: 0.9")

    finished.call("run").ok()

    best = json.loads((finished.folder / "artifacts/metrics.json").read_text())["best"]["epoch"]
    files = finished.files("artifacts")
    checkpoint, saved = files[f"artifacts/checkpoint/model-{best}.mpk.gz"], files["artifacts/model.mpk.gz"]
    assert checkpoint == saved


TRACKER = '''
import json


class Recording:
    """A tracker that writes the description of the run to a file."""

    def __init__(self, directory):
        self.file = directory / "run.json"

    def start(self, run):
        self.file.write_text(json.dumps([run.params["fit"]["seed"], run.tags]))

    def log(self, points):
        pass

    def finish(self, status, summary):
        pass
'''


def test_tracker_receives_the_params_and_the_commit(finished):
    (finished.folder / "trackers.py").write_text(TRACKER)
    finished.edit("params.yaml", "num_epochs: 2", "num_epochs: 1\n  loggers: ['trackers:Recording']")

    finished.call("run", "fit").ok()

    seed, tags = json.loads((finished.folder / "artifacts/telemetry/Recording/run.json").read_text())
    assert (seed, tags["git.commit"]) == (42, finished.ok("git", "rev-parse", "HEAD").strip())
    assert tags["run.key"] in finished.call("runs", "list").ok()
