"""Scores of predicted classes share what they compute of a batch."""

from dataclasses import replace

import pytest
import torch

from stages.contracts.outputs import ClassificationOutput
from stages.metrics import PrecisionMetric, RecallMetric
from stages.metrics.precision_recall import DefaultRule


def test_scores_of_a_batch_predict_its_classes_once_until_it_changes(monkeypatch):
    predictions, predict = [], DefaultRule.predict
    monkeypatch.setattr(DefaultRule, "predict", lambda *given: predictions.append(1) or predict(*given))
    output = ClassificationOutput(torch.zeros(()), torch.eye(3), torch.tensor([0, 1, 1]))
    metrics = [
        kind(reduction=name) for kind in (PrecisionMetric, RecallMetric) for name in ("macro", "micro")
    ]

    before = [metric.measure(output).value for metric in metrics]
    output.output.mul_(-1)
    after = [metric.measure(output).value for metric in metrics]

    assert len(predictions) == 2
    assert before == pytest.approx([200 / 3, 200 / 3, 50.0, 200 / 3])
    assert after == [metric.measure(replace(output)).value for metric in metrics] != before
