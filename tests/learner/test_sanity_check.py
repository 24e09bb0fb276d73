"""Batches of validation before the first epoch."""

import pytest
import torch
from feed import Feed
from torch import nn
from torch.utils.data import DataLoader

from stages.contracts.errors import BuilderError
from stages.contracts.history import Split
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.params.fit_params import FitConfig
from stages.records import DefaultRecorder

BATCHES = [(torch.arange(8.0).reshape(2, 4), torch.tensor([0, 1]))] * 3


class Counting(ClassificationStep, nn.Linear):
    """A model that counts the batches of each split, those of validation also in a buffer."""

    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("validated", torch.zeros(()))
        self.seen = []

    def train_step(self, batch):
        self.seen.append("train")
        return super().train_step(batch)

    def valid_step(self, batch):
        self.seen.append("valid")
        self.validated += 1
        torch.rand(3)
        return super().valid_step(batch)


def fit(directory, batches, num_epochs=1, model=None):
    model = model or Counting()
    builder = LearnerBuilder(directory).metrics(LossMetric()).devices(["cpu"]).sanity_check(batches)
    builder.with_file_checkpointer(DefaultRecorder()).checkpoint("auto").num_epochs(num_epochs)
    builder.build(model, torch.optim.SGD(model.parameters(), 0.1)).fit(BATCHES, BATCHES)
    return model


def test_first_batches_are_validated_before_training(tmp_path):
    model = fit(tmp_path, 2)

    assert model.seen == ["valid"] * 2 + ["train"] * 3 + ["valid"] * 3
    assert model.validated == 3


def test_sanity_check_keeps_a_buffer_to_which_the_model_assigns(tmp_path):
    class Assigning(Counting):
        def valid_step(self, batch):
            self.validated = self.validated + 1
            return ClassificationStep.valid_step(self, batch)

    assert fit(tmp_path, 2, model=Assigning()).validated == 3


def test_sanity_check_changes_no_file_of_the_run(train, tmp_path):
    def files(folder):
        paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "experiment.log"]
        return {path.relative_to(folder): path.read_bytes() for path in paths}

    train(tmp_path / "without")
    train(tmp_path / "with", change=lambda builder: builder.sanity_check(2))

    assert files(tmp_path / "with") == files(tmp_path / "without")


class Recording(Counting):
    """A model whose checkpoints have the number of its batches, and a sum that changes in place."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(())

    def valid_step(self, batch):
        self.total += batch[0].sum()
        return super().valid_step(batch)

    def training_state(self):
        return {"seen": len(self.seen), "total": self.total}

    def load_training_state(self, state):
        self.seen, self.total = ["resumed"] * state["seen"], state["total"]


def test_sanity_check_does_not_change_the_training_state_of_a_model(tmp_path):
    unchecked, checked = (fit(tmp_path / f"{batches}", batches, model=Recording()) for batches in (0, 2))

    assert checked.training_state() == unchecked.training_state() == {"seen": 6, "total": 84}


def test_stream_that_is_checked_is_validated_from_its_beginning(tmp_path):
    def validate(batches):
        torch.manual_seed(3)
        model = Counting()
        builder = (
            LearnerBuilder(tmp_path).metrics(LossMetric()).devices(["cpu"]).sanity_check(batches).seed(1)
        )
        learner = builder.build(model, torch.optim.SGD(model.parameters(), 0.1))
        learner.fit(BATCHES, DataLoader(Feed(), batch_size=4))
        return learner.history.value(1, Split.VALID, "Loss")

    assert validate(2) == validate(0)


def test_run_is_checked_at_its_start_and_not_after_a_resume(tmp_path):
    fit(tmp_path, 0)

    assert fit(tmp_path, 2, num_epochs=2).seen == ["train"] * 3 + ["valid"] * 3


def test_param_is_not_part_of_the_key():
    assert FitConfig(sanity_check=2).key_params() == FitConfig().key_params()


def test_negative_number_is_rejected(tmp_path):
    with pytest.raises(BuilderError, match="pass an integer from 0"):
        LearnerBuilder(tmp_path).sanity_check(-1)
