"""Metrics of a user in a run that is interrupted in the middle of an epoch."""

from collections import deque
from dataclasses import dataclass

import pytest
import torch
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError
from stages.learner import LearnerBuilder
from stages.models import RegressionStep
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import NoRenderer

BATCHES = 4


class Line(RegressionStep, nn.Linear):
    pass


@dataclass(frozen=True)
class Maximum:
    """A frozen dataclass of a tensor and a number."""

    largest: torch.Tensor
    count: int

    def __add__(self, other):
        return Maximum(torch.maximum(self.largest, other.largest), self.count + other.count)

    @property
    def value(self):
        return self.largest.item()


class Errors:
    """All errors of an epoch, without methods for its state."""

    def __init__(self, errors):
        self.errors = errors

    def __add__(self, other):
        return type(self)(self.errors | other.errors)

    @property
    def value(self):
        return float(sum(sorted(self.errors)))

    @property
    def count(self):
        return len(self.errors)


class SavedErrors(Errors):
    """All errors of an epoch, with methods for its state."""

    def state_dict(self):
        return {"errors": sorted(self.errors)}

    def load_state_dict(self, state):
        return type(self)(set(state["errors"]))


class KeptErrors(SavedErrors):
    """The same with containers of several types in its state."""

    def state_dict(self):
        last = deque((torch.tensor(error) for error in sorted(self.errors)), maxlen=3)
        return {"errors": self.errors, "by index": {0: (1, last)}}

    def load_state_dict(self, state):
        assert type(state["by index"][0][1]) is deque
        assert state["by index"][0][1].maxlen == 3
        return type(self)(state["errors"])


class OpaqueErrors(KeptErrors):
    """The same with an object that no checkpoint can hold."""

    def state_dict(self):
        return {"errors": [{"first": iter(self.errors)}]}


class MaxErrorMetric:
    name, unit = "Max Error", None

    def measure(self, output):
        return Maximum((output.output - output.targets).detach().abs().max(), output.size)


class ErrorsMetric:
    name, unit = "Errors", None

    def __init__(self, kind):
        self.kind = kind

    def measure(self, output):
        return self.kind({round(error, 3) for error in (output.output - output.targets).flatten().tolist()})


def train(directory, metric, stop_after=None, **every):
    torch.manual_seed(0)
    inputs = torch.rand(8 * BATCHES, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, 3 * inputs), 8)
    builder = LearnerBuilder(directory).num_epochs(2).seed(1).devices(["cpu"]).metrics(metric)
    builder.with_file_checkpointer(NamedMpkGzFileRecorder()).checkpoint("auto").checkpoint_every(**every)
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    learner = builder.build(Line(1, 1), Adam(), 0.1)
    learner.fit(loader, loader)
    return learner


def logs(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for split in ("train", "valid")
        for path in sorted((directory / split).rglob("*.log"))
    }


@pytest.mark.parametrize(
    "metric",
    [MaxErrorMetric(), ErrorsMetric(SavedErrors), ErrorsMetric(KeptErrors)],
    ids=["dataclass", "methods", "containers"],
)
@pytest.mark.parametrize("stop_after", [2, BATCHES + 1, 2 * BATCHES + 3])
def test_resumed_values_of_a_users_metric_equal_uninterrupted_values(metric, stop_after, tmp_path):
    train(tmp_path / "uninterrupted", metric)

    train(tmp_path / "resumed", metric, stop_after)
    resumed = train(tmp_path / "resumed", metric)

    assert resumed.resumed
    assert logs(tmp_path / "resumed") == logs(tmp_path / "uninterrupted") != {}


def test_metric_that_the_checkpoint_lacks_is_reported(tmp_path, caplog):
    """Its value of the epoch covers the remaining batches only; the next epoch has all of them."""
    train(tmp_path, MaxErrorMetric(), stop_after=2)

    train(tmp_path, ErrorsMetric(SavedErrors))

    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("the checkpoint has no sum of the metric 'Errors': its train value of epoch 1")


@pytest.mark.parametrize("every", [{"steps": 100}, {"seconds": 3600.0}])
def test_metric_that_cannot_be_saved_fails_in_the_first_batch(every, tmp_path):
    with pytest.raises(BuilderError) as caught:
        train(tmp_path, ErrorsMetric(Errors), **every)

    assert "metric 'Errors' accumulates Errors, which cannot be saved in the middle of an epoch" in str(
        caught.value
    )
    assert "give it the methods state_dict() and load_state_dict(state)" in str(caught.value)
    assert "fit.checkpoint_every_seconds" in str(caught.value)


def test_state_dict_that_no_checkpoint_can_hold_fails_in_the_first_batch(tmp_path):
    with pytest.raises(
        BuilderError, match=r"metric 'Errors': .*\['errors'\]\[0\]\['first'\] is of the type set_"
    ):
        train(tmp_path, ErrorsMetric(OpaqueErrors), steps=100)


def test_metric_needs_no_state_without_checkpoints_within_epochs(tmp_path):
    learner = train(tmp_path, ErrorsMetric(Errors))

    assert learner.epoch == 2
    assert len(logs(tmp_path)) == 4


def test_interrupted_run_whose_metric_cannot_be_saved_resumes_at_the_epoch(tmp_path, caplog):
    train(tmp_path / "uninterrupted", ErrorsMetric(Errors))

    interrupted = train(tmp_path / "resumed", ErrorsMetric(Errors), stop_after=2 * BATCHES + 2)
    resumed = train(tmp_path / "resumed", ErrorsMetric(Errors))

    assert interrupted.interrupted
    assert "which cannot be saved in the middle of an epoch" in caplog.text
    assert resumed.resumed == "after epoch 1"
    assert logs(tmp_path / "resumed") == logs(tmp_path / "uninterrupted")
