"""A run in a directory in which Burn has trained resumes from its checkpoint, and removes no file of Burn."""

import json
import tarfile
from pathlib import Path

import pytest
import torch
from burn_files import BURN_022, needs_files

from stages.contracts.errors import CheckpointError
from stages.learner import LearnerBuilder, LoopCheckpoints
from stages.metrics import AccuracyMetric, LearningRateMetric, LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam, Linear, Scheduler, Sgd
from stages.records import BurnpackRecorder, DefaultRecorder, NamedMpkGzFileRecorder, read_item
from stages.renderers import NoRenderer
from stages.runs.checkpointer import FileCheckpointer
from stages.runs.file_names import TRAINER_SUFFIX

SCHEDULES = {"constant": lambda: 0.05, "linear": lambda: Scheduler(0.05, Linear(final=0.01, num_iters=16))}
OPTIMIZERS = {"adam": Adam(), "sgd": Sgd(kind="sgd"), "sgd with momentum": Sgd(kind="sgd", momentum=0.9)}


def with_ids(node, ids):
    """Return *node* with random ids, as Burn draws them."""
    if not isinstance(node, dict):
        return [with_ids(part, ids) for part in node] if isinstance(node, list) else node
    if node.keys() == {"id", "param"}:
        return {**node, "id": ids.setdefault(node["id"], f"{len(ids):013d}")}
    return {ids.get(key, key): with_ids(part, ids) for key, part in node.items()}


def make_burn(directory):
    """Make the run in *directory* one of Burn: with its ids, and without files of this project alone."""
    folder, recorder = directory / "checkpoint", NamedMpkGzFileRecorder()
    for path in folder.glob(f"trainer-*{TRAINER_SUFFIX}"):
        path.unlink()
    for path in sorted(folder.glob("model-*")):  # first, since the ids are those of its parameters
        ids = {}
        for name in (path.name, path.name.replace("model", "optim")):
            recorder.record(with_ids(read_item(folder / name), ids), folder / name)


def values_of(learner):
    return {(value.epoch, value.split, value.metric): value.value for value in learner.history}


def contents(directory):
    paths = [path for path in directory.rglob("*") if path.is_file() and path.name != "experiment.log"]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def run(start, directory, epochs, tiny, checkpoint=None, *, optimizer=None, schedule=SCHEDULES["constant"]):
    builder = start(directory, epochs)
    if checkpoint:
        builder.checkpoint(checkpoint)
    make_net, load = tiny
    learner = builder.build(make_net(), optimizer or Adam(), schedule())
    learner.fit(*load())
    return learner


@pytest.mark.parametrize(
    ("checkpoint", "optimizer", "schedule"),
    [("auto", "adam", "linear"), (2, "sgd with momentum", "constant"), ("auto", "sgd", "linear")],
)
def test_run_resumes_from_a_checkpoint_of_burn(
    checkpoint, optimizer, schedule, start, tiny, tmp_path, capsys
):
    options = {"optimizer": OPTIMIZERS[optimizer], "schedule": SCHEDULES[schedule]}
    whole = run(start, tmp_path / "whole", 4, tiny, **options)
    run(start, tmp_path / "half", 2, tiny, **options)
    make_burn(tmp_path / "half")
    before = contents(tmp_path / "half")

    resumed = run(start, tmp_path / "half", 4, tiny, checkpoint, **options)

    printed = capsys.readouterr().out
    assert "resuming after epoch 2 of Burn, from" in printed
    assert "the optimizer resumes from optim-2.mpk.gz; the schedule resumes from scheduler-2" in printed
    assert resumed.resumed == "after epoch 2"
    assert values_of(resumed) == pytest.approx(values_of(whole), rel=1e-6)  # of Burn's epochs, from its logs
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    after = contents(tmp_path / "half")
    assert {name: after.get(name) for name in before} == before
    logs = {name: text for name, text in contents(tmp_path / "whole").items() if name.endswith(".log")}
    assert {name: after[name] for name in logs} == logs


def test_run_that_would_replace_files_of_burn_is_refused(start, tiny, tmp_path):
    run(start, tmp_path, 2, tiny)
    make_burn(tmp_path)
    before = contents(tmp_path)
    make_net, load = tiny

    for checkpoint in (None, 1):
        with pytest.raises(
            CheckpointError, match=r"Burn wrote, up to epoch 2, and a run after epoch \d would"
        ):
            run(start, tmp_path, 4, tiny, checkpoint)
    with pytest.raises(CheckpointError, match="up to epoch 2"):  # without a checkpointer, for the logs
        LearnerBuilder(tmp_path).renderer(NoRenderer()).build(make_net(), Adam()).fit(*load())
    with pytest.raises(CheckpointError, match="no checkpoint of epoch 3; found: 1, 2"):
        run(start, tmp_path, 4, tiny, 3)
    with pytest.raises(CheckpointError, match="checkpoint has checkpoints that Burn wrote"):
        LoopCheckpoints(tmp_path / "checkpoint", make_net())

    assert contents(tmp_path) == before


def test_logs_of_burn_without_checkpoints_are_moved_aside(tiny, tmp_path, capsys):
    make_net, load = tiny

    def log_run(directory, epochs):
        builder = LearnerBuilder(directory).num_epochs(epochs).renderer(NoRenderer())
        builder.metrics(LossMetric()).devices(["cpu"]).build(make_net(), Adam(), 0.05).fit(*load())

    log_run(tmp_path, 2)
    log_run(tmp_path, 1)  # it replaces logs of this project
    assert {path.name for path in (tmp_path / "train").iterdir()} == {"epoch-1"}
    (tmp_path / "experiment.log").write_text("2026-05-02T07:00:00Z  INFO burn_train::learner: Fitting")
    before = contents(tmp_path)
    capsys.readouterr()

    for epochs in (1, 1):
        log_run(tmp_path, epochs)

    assert "no run of this project wrote, to folders named *.1" in capsys.readouterr().out
    after = contents(tmp_path)
    assert {name.replace("/", ".1/", 1): text for name, text in before.items()}.items() <= after.items()
    assert not (tmp_path / "train.2").exists()


def test_logs_of_a_run_that_ended_before_its_first_checkpoint_are_its_own(tiny, tmp_path):
    make_net, load = tiny

    class Failing(NoRenderer):
        def step(self, progress):
            raise ZeroDivisionError

    def run(directory, renderer):
        builder = LearnerBuilder(directory).with_file_checkpointer(DefaultRecorder()).metrics(LossMetric())
        builder.devices(["cpu"]).with_application_logger(None).renderer(renderer).seed(1)
        builder.build(make_net(), Adam(), 0.05).fit(*load())

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "twice", Failing())
    assert (tmp_path / "twice/train/epoch-1/Loss.log").exists()
    for directory in ("twice", "once"):
        run(tmp_path / directory, NoRenderer())

    assert contents(tmp_path / "twice") == contents(tmp_path / "once")


def test_model_without_ids_is_not_taken_for_one_of_this_project(tmp_path):
    checkpointer = FileCheckpointer(tmp_path, DefaultRecorder())
    DefaultRecorder().record({"weight": torch.ones(2)}, tmp_path / "model-1")

    checkpointer.remove_partial_files()

    assert (tmp_path / "model-1.mpk.gz").exists()


def test_newest_checkpoint_is_that_of_this_project_after_it_resumed(start, tiny, tmp_path, capsys):
    run(start, tmp_path, 2, tiny)
    make_burn(tmp_path)
    run(start, tmp_path, 3, tiny, "auto")
    capsys.readouterr()

    resumed = run(start, tmp_path, 4, tiny, "auto")

    assert resumed.resumed == "after epoch 3"
    assert "Burn" not in capsys.readouterr().out
    assert (tmp_path / "checkpoint/model-2.mpk.gz").exists()


class Net(ClassificationStep, torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, batch):
        return self.linear(batch)


SAMPLES = json.loads((Path(__file__).parent / "burn_samples.json").read_text())
"""Samples for both runs, which recorded none: fitted in NumPy, with the formula of Adam, to Burn's losses of
epochs 11 to 20. Classes 0 and 1 alternate."""


def samples(split, count):
    """Return a batch of *count*, in which the samples of *split* repeat."""
    rows = torch.tensor(SAMPLES[split])
    return rows.repeat(count // len(rows), 1), torch.arange(count) % 2


def losses(folder, split):
    paths = [folder / f"{split}/epoch-{epoch}/Loss.log" for epoch in range(11, 21)]
    return [float(path.read_text().partition(",")[0]) for path in paths]


RATES = {"tiny22": lambda: Scheduler(0.1, Linear(final=0.01, num_iters=20)), "tiny21": lambda: 0.1}


@needs_files
@pytest.mark.parametrize(
    ("name", "recorder"), [("tiny22", BurnpackRecorder()), ("tiny21", DefaultRecorder())]
)
def test_run_of_burn_continues_to_its_losses_and_keeps_its_files(name, recorder, tmp_path):
    for run_of_burn in ("half", "full"):
        with tarfile.open(BURN_022 / f"runs/{name}-{run_of_burn}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
    directory, full = tmp_path / f"{name}-half", tmp_path / f"{name}-full"
    before = contents(directory)
    builder = LearnerBuilder(directory).num_epochs(20).devices(["cpu"]).renderer(NoRenderer())
    builder.metrics(AccuracyMetric(), LossMetric()).metric_train_numeric(LearningRateMetric())
    train, valid = samples("train", 640), samples("valid", 200)

    learner = (
        builder.with_file_checkpointer(recorder)
        .checkpoint("auto")
        .build(Net(), Adam(learning_rate=0.1), RATES[name]())
    )
    learner.fit([train], [valid])

    assert contents(directory).items() >= before.items()
    for split in ("train", "valid"):
        assert losses(directory, split) == pytest.approx(losses(full, split), abs=1e-6)
    states = learner.components.state.model.optimizer.state.values()
    assert {int(state["step"]) for state in states} == {20}
    for epoch in range(11, 21):
        rates, accuracies = f"train/epoch-{epoch}/Learning_Rate.log", f"valid/epoch-{epoch}/Accuracy.log"
        assert (directory / rates).read_text() == (full / rates).read_text()
        ours, theirs = ((folder / accuracies).read_text().split() for folder in (directory, full))
        assert [line.partition(",")[2] for line in ours] == [line.partition(",")[2] for line in theirs]
