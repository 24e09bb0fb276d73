"""The values of batches and epochs that a meter logs and shows."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from stages.contracts.history import Split
from stages.contracts.outputs import ClassificationOutput
from stages.contracts.step_log import current_log
from stages.learner.metering import Meter
from stages.learner.registered_metric import RegisteredMetric
from stages.loggers import InMemoryMetricLogger
from stages.metrics import AccuracyMetric, AurocMetric
from stages.renderers import NoRenderer


def metered(classes, flushed_every=4):
    """Measure three batches, the last one small, of 8 samples each; return the logger and the meter."""
    logger = InMemoryMetricLogger()
    metrics = [
        (RegisteredMetric(metric, numeric=True), [logger]) for metric in (AccuracyMetric(), AurocMetric())
    ]
    meter = Meter(metrics, NoRenderer(), Split.VALID, epoch=1)
    for iteration, size in enumerate((8, 8, 2), start=1):
        targets = torch.arange(size) % classes
        meter.measure(
            ClassificationOutput(torch.zeros(()), torch.eye(classes)[targets], targets), iteration, 0.0
        )
        if iteration % flushed_every == 0:
            meter.flush()
    return logger, meter


def test_metric_of_few_classes_has_a_value_for_each_batch():
    logger, meter = metered(classes=3)

    assert set(meter.latest()) == {"Accuracy", "AUROC [Macro]"}
    meter.flush()
    assert logger.values(1, "AUROC [Macro]") == [100.0] * 3


def test_metric_of_many_classes_has_a_value_for_the_epoch_only():
    """A small last batch has no value either, so the number of lines does not depend on the batch size."""
    logger, meter = metered(classes=101)

    assert meter.latest() == {"Accuracy": 100.0}
    assert meter.finish() == {"Accuracy": 100.0, "AUROC [Macro]": 100.0}
    assert [(row.iteration, row.value) for row in logger.rows if row.name == "AUROC [Macro]"] == [
        (None, 100.0)
    ]


@dataclass(frozen=True)
class Total:
    has_batch_value: ClassVar[bool] = False
    value: float
    count: int = 1

    def __add__(self, other):
        return Total(self.value + other.value)


class WatchedMetric:
    """Counts the batches of a pass that the loop requested."""

    name, telemetry = "Watched", True

    def begin(self):
        self.batches = 0

    def watch(self, batches):
        for batch in batches:
            self.batches += 1
            yield batch

    def read(self):
        return Total(float(self.batches))


def meter_of(*metrics, logger=None):
    registered = [(RegisteredMetric(metric, numeric=True), [logger] if logger else []) for metric in metrics]
    return Meter(registered, NoRenderer(), Split.TRAIN, epoch=1)


def run_pass(meter, count, resumed=None):
    meter.begin()
    meter.load_state_dict(resumed or {})
    for iteration, targets in enumerate(meter.watch([torch.arange(2)] * count), start=1):
        meter.measure(ClassificationOutput(torch.zeros(()), torch.eye(2), targets), iteration, 0.0)


def test_metric_of_a_pass_has_one_value_and_none_for_a_batch():
    logger = InMemoryMetricLogger()
    meter = meter_of(AccuracyMetric(), WatchedMetric(), logger=logger)

    run_pass(meter, 3)

    assert meter.running() == {"Accuracy": 100.0, "Watched": 3.0}
    assert meter.latest() == {"Accuracy": 100.0}
    assert meter.finish() == {"Accuracy": 100.0}
    assert meter.telemetry == {"Watched": 3.0}
    assert [(row.iteration, row.value) for row in logger.rows if row.name == "Watched"] == [(None, 3.0)]


def test_values_of_a_finished_pass_stay_when_its_metrics_begin_another():
    """Both splits share the metrics, and the live view may read the values of training in validation."""
    metric = WatchedMetric()
    train, valid = meter_of(metric), meter_of(metric)
    run_pass(train, 3)
    train.finish()

    run_pass(valid, 1)

    assert [train.running(), valid.running()] == [{"Watched": 3.0}, {"Watched": 1.0}]


def test_resumed_pass_has_the_value_of_all_its_parts():
    first, second = meter_of(AccuracyMetric(), WatchedMetric()), meter_of(AccuracyMetric(), WatchedMetric())
    run_pass(first, 3)

    run_pass(second, 2, resumed=first.state_dict())

    assert second.running() == {"Accuracy": 100.0, "Watched": 5.0}


def test_pass_without_metrics_that_watch_it_iterates_over_the_loader_itself():
    batches = [torch.arange(2)]

    assert meter_of(AccuracyMetric()).watch(batches) is batches


@pytest.mark.parametrize("flushed_every", [1, 2, 3])
def test_order_of_logged_values_does_not_depend_on_when_they_are_read(flushed_every):
    """A checkpoint within an epoch reads them before there are 64 batches."""
    logger, meter = metered(3, flushed_every)
    meter.flush()

    order = [(row.iteration, row.name) for row in logger.rows]
    assert order == [(batch, name) for batch in (1, 2, 3) for name in ("Accuracy", "AUROC [Macro]")]


@pytest.mark.parametrize("flushed_every", [1, 2])
def test_numbers_that_steps_log_are_in_order_of_their_names(flushed_every):
    """Not in the order of their first values since the values were read last."""
    logger = InMemoryMetricLogger()
    meter = Meter([], NoRenderer(), Split.TRAIN, epoch=1, burn="0.22", log_loggers=[logger])
    meter.begin()
    output = ClassificationOutput(torch.zeros(()), torch.eye(2), torch.arange(2))
    for iteration, names in enumerate((["b"], ["b", "a"]), start=1):
        for name in names:
            current_log.get().add_number(name, 1.0, None)
        meter.measure(output, iteration, 0.0)
        if iteration % flushed_every == 0:
            meter.flush()
    meter.finish()

    assert [(row.name, row.iteration) for row in logger.rows] == [
        *[("b", 1), ("a", 2), ("b", 2)],
        *[("a", None), ("b", None)],
    ]
