"""The builder of Burn 0.20 and later, its checkpointers, and the definitions that loggers receive."""

import re
import shutil

import pytest
import torch

from stages.contracts.errors import BuilderError, CheckpointError, ParamsError
from stages.contracts.history import Direction, Split
from stages.learner import Learner, SupervisedTraining
from stages.loggers import InMemoryMetricLogger
from stages.metrics import AccuracyMetric, AurocMetric, LossMetric
from stages.optim import Adam, ClipByNorm, Composed, Linear, Sequential
from stages.records import DefaultRecorder
from stages.renderers import NoRenderer


class Bucket:
    """A storage in memory."""

    def __init__(self):
        self.files = {}

    def names(self):
        return [*self.files, "notes.txt"]

    def read(self, name):
        return self.files[name]

    def write(self, name, content):
        self.files[name] = content

    def remove(self, name):
        del self.files[name]


def training(directory, tiny, epochs=2):
    made = SupervisedTraining(directory, *tiny[1]()).metrics(AccuracyMetric(), LossMetric())
    return made.num_epochs(epochs).seed(1).devices(["cpu"]).renderer(NoRenderer())


def test_launched_learner_equals_a_built_one(train, tiny, tmp_path):
    built = train(tmp_path / "built", epochs=2)

    launched = (
        training(tmp_path / "launched", tiny)
        .with_default_checkpointers()
        .launch(Learner(tiny[0](), Adam(), 0.05))
    )

    torch.testing.assert_close(launched.model.state_dict(), built.model.state_dict(), rtol=0, atol=0)
    assert launched.history.value(2, Split.VALID, "Loss") == built.history.value(2, Split.VALID, "Loss")
    assert (tmp_path / "launched/checkpoint/optim-2.bpk").exists()


def test_learner_without_options_names_the_right_call(tiny):
    with pytest.raises(BuilderError, match=r"pass it to SupervisedTraining\.launch"):
        Learner(tiny[0](), Adam(), 0.05).fit(*tiny[1]())


def test_run_resumes_from_its_storage_without_its_checkpoint_folder(tiny, tmp_path):
    bucket = Bucket()

    def launch(directory, epochs, storage=bucket):
        made = training(directory, tiny, epochs).with_custom_checkpointers(storage, DefaultRecorder())
        return made.checkpoint("auto").launch(Learner(tiny[0](), Adam(), 0.05))

    uninterrupted = launch(tmp_path / "whole", 4, Bucket())
    launch(tmp_path / "stopped", 2)
    folder = tmp_path / "stopped/checkpoint"
    shutil.rmtree(folder)

    resumed = launch(tmp_path / "stopped", 4)

    assert resumed.resumed == "after epoch 2"
    weights = uninterrupted.model.state_dict()
    torch.testing.assert_close(resumed.model.state_dict(), weights, rtol=0, atol=0)
    assert bucket.files == {path.name: path.read_bytes() for path in folder.glob("*-*.mpk.gz")}


def test_incomplete_storage_has_no_checkpoint(tiny, tmp_path):
    bucket = Bucket()
    made = training(tmp_path / "first", tiny).with_custom_checkpointers(bucket)
    made.launch(Learner(tiny[0](), Adam(), 0.05))
    del bucket.files["trainer-2.mpk.gz"]

    with pytest.raises(CheckpointError, match=r"no checkpoint of epoch 2; found: 1\."):
        training(tmp_path / "second", tiny, 3).with_custom_checkpointers(bucket).checkpoint(2).launch(
            Learner(tiny[0](), Adam(), 0.05)
        )


class Defining(InMemoryMetricLogger):
    """A logger with the definitions of its metrics."""

    def __init__(self):
        super().__init__()
        self.definitions = []

    def log_metric_definition(self, definition):
        assert not self.rows, "before the first value"
        self.definitions.append(definition)


def test_loggers_receive_the_definition_of_each_metric_once(tiny, tmp_path):
    loggers = Defining(), Defining()
    loss = LossMetric()
    loss.description = "The mean cross-entropy."
    made = training(tmp_path, tiny).metric_loggers(*loggers).metric_train_numeric(AurocMetric("macro"))

    made.launch(Learner(tiny[0](), Adam(), 0.05))
    names = [definition.name for definition in loggers[0].definitions]
    assert names == ["Accuracy", "Loss", "AUROC [Macro]"]
    assert [definition.name for definition in loggers[1].definitions] == ["Accuracy", "Loss"]
    accuracy = loggers[1].definitions[0]
    assert (accuracy.unit, accuracy.better, accuracy.description) == ("%", Direction.HIGHEST, None)


@pytest.mark.parametrize(
    ("kind", "values", "call"),
    [
        (Linear, (0.01, 0.001, 60), "Linear(initial=0.01, …)"),
        (Sequential, ([], [1]), "Sequential(schedulers=[], …)"),
        (Composed, ([],), "Composed(schedulers=[], …)"),
        (ClipByNorm, (1.0,), "ClipByNorm(max_norm=1.0, …)"),
    ],
)
def test_options_without_names_are_refused_with_the_right_call(kind, values, call):
    with pytest.raises(ParamsError, match=rf"Write, for example, {re.escape(call)} with names of "):
        kind(*values)
