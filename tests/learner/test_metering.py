"""The values of batches and epochs that a meter logs and shows."""

import torch

from stages.contracts.history import Split
from stages.contracts.outputs import ClassificationOutput
from stages.learner.metering import Meter, RegisteredMetric
from stages.loggers import InMemoryMetricLogger
from stages.metrics import AccuracyMetric, AurocMetric
from stages.renderers import NoRenderer


def metered(classes):
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
