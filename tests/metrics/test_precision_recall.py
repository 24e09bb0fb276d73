"""Scores of predicted classes share what they compute of a batch."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import matthews_corrcoef

from stages.contracts.outputs import ClassificationOutput
from stages.metrics import MatthewsCorrelationCoefficientMetric, PrecisionMetric, RecallMetric
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


@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("constant", [False, True])
def test_matthews_coefficient_of_batches_equals_that_of_scikit_learn(classes, constant):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(30, classes, generator=generator)
    targets = torch.randint(0, max(classes, 2), (30,), generator=generator)
    if constant:
        logits = -torch.ones(30, classes)
    metric = MatthewsCorrelationCoefficientMetric()

    parts = (slice(0, 8), slice(8, 9), slice(9, 30))
    batches = [
        metric.measure(ClassificationOutput(torch.zeros(()), logits[part], targets[part])) for part in parts
    ]

    predicted = logits[:, 0] > 0 if classes == 1 else logits.argmax(1)
    assert sum(batches[1:], batches[0]).value == pytest.approx(matthews_corrcoef(targets, predicted))
    assert MatthewsCorrelationCoefficientMetric.binary(0.4).name.endswith("@ Threshold(0.4)")
