"""Validation after every Nth epoch."""

import pytest
import torch
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction, Split
from stages.learner import LearnerBuilder
from stages.learner.run_state import best_epoch
from stages.metrics import IterationSpeedMetric, LossMetric
from stages.models import ClassificationStep
from stages.records import DefaultRecorder
from stages.renderers import NoRenderer
from stages.runs import MetricEarlyStopping

BATCHES = [(torch.arange(8.0).reshape(2, 4), torch.tensor([0, 1]))] * 3


class Net(ClassificationStep, nn.Linear):
    """A classifier with one layer."""


def fit(directory, num_epochs, every, *, scheduler=None, stopping=None, is_worse=False, stop_after=0):
    torch.manual_seed(0)
    model = Net(4, 2)
    builder = LearnerBuilder(directory).metrics(LossMetric()).devices(["cpu"]).validate_every(every)
    builder.with_file_checkpointer(DefaultRecorder()).checkpoint("auto").num_epochs(num_epochs)
    builder.renderer(StopAfter(builder.interrupter(), stop_after))
    if stopping:
        builder.early_stopping(stopping)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=is_worse)
    learner = builder.build(model, optimizer, scheduler and scheduler(optimizer))
    learner.fit(BATCHES, BATCHES)
    return learner


def valid_epochs(learner):
    return [
        epoch for epoch in range(1, learner.epoch + 1) if learner.history.value(epoch, Split.VALID, "Loss")
    ]


def test_only_epochs_that_are_multiples_are_validated(tmp_path):
    learner = fit(tmp_path, 5, 2)

    assert valid_epochs(learner) == [2, 4]
    assert len(learner.history.series(Split.TRAIN, "Loss")) == 5
    assert learner.history.best(Split.VALID, "Loss", Direction.LOWEST) == 4
    assert sorted(path.name for path in (tmp_path / "valid").iterdir()) == ["epoch-2", "epoch-4"]


@pytest.mark.parametrize("interrupted_after", [1, 2, 3])
def test_resumed_run_equals_uninterrupted_run(tmp_path, interrupted_after):
    fit(tmp_path / "resumed", interrupted_after, 2)
    fit(tmp_path / "resumed", 5, 2)
    fit(tmp_path / "whole", 5, 2)

    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file() and path.name != "experiment.log":
            assert (
                tmp_path / "resumed" / path.relative_to(tmp_path / "whole")
            ).read_bytes() == path.read_bytes()


def test_interrupted_validation_is_completed_if_its_epoch_is_no_longer_validated(tmp_path):
    """The next epoch is trained."""
    fit(tmp_path, 2, 1, stop_after=4)

    learner = fit(tmp_path, 2, 2)

    assert learner.resumed == "in epoch 1, after batch 1 of validation"
    assert [*learner.history.series(Split.TRAIN, "Loss")] == valid_epochs(learner) == [1, 2]


def test_early_stopping_waits_for_the_next_validation(tmp_path):
    stopping = MetricEarlyStopping(n_epochs=1)

    improving = fit(tmp_path / "improving", 5, 2, stopping=stopping)
    worse = fit(tmp_path / "worse", 9, 2, stopping=stopping, is_worse=True)

    assert (improving.epoch, worse.epoch) == (5, 4)


def test_plateau_counts_validated_epochs(tmp_path):
    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

    worse = fit(tmp_path, 5, 2, scheduler=plateau, is_worse=True)

    assert worse.components.state.model.optimizer.param_groups[0]["lr"] == 0.05


def test_run_that_is_too_short_for_a_validation_has_its_last_epoch_as_best(tmp_path):
    learner = fit(tmp_path, 1, 2)

    assert best_epoch(learner.components.state.checkpoint()) == 1


def test_telemetry_of_an_epoch_without_validation_has_no_values_of_an_earlier_one(tmp_path):
    class Splits(NoRenderer):
        """The splits of which each epoch has telemetry."""

        def __init__(self):
            self.measured = []

        def epoch_end(self, progress, history):
            self.measured.append([split.value for split in progress.telemetry])

    renderer, model = Splits(), Net(4, 2)
    builder = LearnerBuilder(tmp_path).metrics(LossMetric(), IterationSpeedMetric()).devices(["cpu"])
    builder.validate_every(2).num_epochs(3).renderer(renderer)

    builder.build(model, torch.optim.SGD(model.parameters(), 0.1)).fit(BATCHES, BATCHES)

    assert renderer.measured == [["train"], ["train", "valid"], ["train"]]


def test_number_below_1_is_rejected(tmp_path):
    with pytest.raises(BuilderError, match=r"validate_every\(0\): pass an integer from 1"):
        LearnerBuilder(tmp_path).validate_every(0)
