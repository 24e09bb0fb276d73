"""Metrics have the value of float32 and int64 in every dtype of logits and targets."""

import pytest
import torch

from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput, is_counted
from stages.metrics import (
    AccuracyMetric,
    FBetaScoreMetric,
    HammingScore,
    PerplexityMetric,
    PrecisionMetric,
    RecallMetric,
    TopKAccuracyMetric,
    TorchMetric,
)
from stages.metrics.class_targets import ClassCollector, compute_accuracy
from stages.metrics.from_torchmetrics import dice

ZERO = torch.zeros(())
SMALL = torch.arange(1, 2001) / 200_000
"""Logits above 0 whose probabilities are all rounded to 0.5 in half precision."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "metric",
    [RecallMetric(), PrecisionMetric(threshold=0.5), FBetaScoreMetric(), RecallMetric.binary()],
    ids=["recall", "precision", "f1", "recall of one logit"],
)
def test_thresholds_apply_to_probabilities_that_are_not_rounded(metric, dtype):
    output = ClassificationOutput(ZERO, SMALL.to(dtype), torch.ones(2000, dtype=torch.long))

    assert metric.measure(output).value == 100


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_threshold_of_labels_is_not_rounded_either(dtype):
    targets = torch.ones(1000, 2)

    logits = MultiLabelClassificationOutput(ZERO, SMALL.to(dtype).view(1000, 2), targets)
    scores = MultiLabelClassificationOutput(ZERO, torch.full((1, 1), 0.3, dtype=dtype), torch.zeros(1, 1))

    assert HammingScore().measure(logits).value == 100
    above = float(scores.output) > 0.2999
    assert HammingScore(threshold=0.2999, sigmoid=False).measure(scores).value == (0 if above else 100)


def test_probabilities_for_torchmetrics_are_not_rounded():
    recall = pytest.importorskip("torchmetrics").classification.BinaryRecall()
    output = ClassificationOutput(ZERO, SMALL.bfloat16(), torch.ones(2000, dtype=torch.long))

    assert TorchMetric(recall).measure(output).value == 1


@pytest.mark.parametrize("pad_token", [None, 156, 3])
@pytest.mark.parametrize(
    "metric", [AccuracyMetric, PerplexityMetric, lambda **options: TopKAccuracyMetric(2, **options)]
)
def test_unsigned_targets_of_156_are_counted(metric, pad_token):
    torch.manual_seed(1)
    logits, targets = torch.randn(6, 200), torch.tensor([156, 0, 156, 3, 199, 156])
    narrow, wide = (ClassificationOutput(ZERO, logits, each) for each in (targets.to(torch.uint8), targets))

    found, expected = (metric(pad_token=pad_token).measure(each) for each in (narrow, wide))

    assert (found.count, found.value) == (expected.count, expected.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("metric", [AccuracyMetric(), PerplexityMetric(), PerplexityMetric(pad_token=0)])
def test_targets_of_any_integer_type_are_counted(metric, dtype):
    logits, targets = torch.tensor([[1.0, 2.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([1, 0, -100])

    found, expected = (
        metric.measure(ClassificationOutput(ZERO, logits, each)) for each in (targets.to(dtype), targets)
    )

    assert (found.count, found.value) == (expected.count, expected.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.float32])
def test_only_the_ignored_target_and_the_padding_are_not_counted(dtype):
    targets = torch.tensor([156, 3, -100], dtype=torch.int64).clamp(min=0 if dtype is torch.uint8 else -100)

    assert is_counted(targets.to(dtype), 3).tolist() == [True, False, dtype is torch.uint8]


def test_dice_ignores_pixels():
    pytest.importorskip("torchmetrics")
    torch.manual_seed(1)
    logits, targets = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    ignored = targets.clone()
    ignored[0, 1:3] = -100
    counted = ignored != -100
    kept = ClassificationOutput(ZERO, logits.movedim(1, -1)[counted].T[None], targets[counted][None])

    found = dice(3).measure(ClassificationOutput(ZERO, logits, ignored))

    assert found.value == dice(3).measure(kept).value


def test_metric_that_needs_two_samples_has_no_value_for_one():
    metrics = pytest.importorskip("torchmetrics").regression
    from stages.contracts.outputs import RegressionOutput

    values = torch.arange(3.0)
    r2 = TorchMetric(metrics.R2Score())
    one, two = (r2.measure(RegressionOutput(ZERO, each + 0.1, each)) for each in (values[:1], values[1:]))

    assert one.value != one.value
    assert (one + two).value == pytest.approx(1 - 3 * 0.01 / 2, rel=1e-5)


def test_collector_of_batches_does_not_depend_on_the_default_dtype_of_the_program():
    """In a program of bfloat16 logits, which are not collected, the values are those of each batch."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        collector = ClassCollector(lambda output: compute_accuracy(output, "Accuracy", None), None)
        logits, targets = torch.eye(3), torch.tensor([0, 1, 1])
        value = collector.add(ClassificationOutput(torch.zeros(()), logits, targets))

        assert value.total / value.weight == pytest.approx(200 / 3)
        assert collector.measure() == []
    finally:
        torch.set_default_dtype(default)
