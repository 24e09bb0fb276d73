"""Target and predicted classes: a single logit, positions, ties, NaN and ignored targets."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn
from torchmetrics.functional.classification import multiclass_accuracy

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput, SequenceOutput
from stages.metrics import (
    AccuracyMetric,
    AucPrMetric,
    AurocMetric,
    ConfusionMatrix,
    HammingScore,
    Mean,
    PerplexityMetric,
    PrecisionMetric,
    RecallMetric,
    TopKAccuracyMetric,
)

LOSS = torch.tensor(0.0)
NAN = math.nan
ONE_CLASS = [AccuracyMetric(), TopKAccuracyMetric(1), RecallMetric.multiclass(1, "micro")]
OF_CLASSES = [
    *ONE_CLASS,
    TopKAccuracyMetric(2),
    PrecisionMetric.multiclass(2),
    PrecisionMetric(threshold=0.4),
    AurocMetric(),
    AucPrMetric(),
    PerplexityMetric(),
]


def output_of(logits, targets):
    return ClassificationOutput(LOSS, torch.as_tensor(logits), torch.as_tensor(targets))


def random_output(*shape, classes, seed=0):
    """Return random logits of *shape*, with the classes in dimension 1, and random targets."""
    generator = torch.Generator().manual_seed(seed)
    positions = (shape[0], *shape[2:])
    return output_of(
        torch.randn(shape, generator=generator), torch.randint(0, classes, positions, generator=generator)
    )


def metric_id(metric):
    return f"{type(metric).__name__} {metric.name}" if hasattr(metric, "name") else metric.__name__


@pytest.mark.parametrize("metric", ONE_CLASS, ids=metric_id)
@pytest.mark.parametrize("logits_shape", [(9,), (9, 1)])
@pytest.mark.parametrize("targets_shape", [(9,), (9, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_single_logit_above_zero_predicts_class_1(metric, logits_shape, targets_shape, dtype):
    output = random_output(9, 1, classes=2)
    right = sklearn.accuracy_score(output.targets, output.output[:, 0] > 0)
    recall = sklearn.recall_score(output.targets, output.output[:, 0] > 0)
    expected = recall if isinstance(metric, RecallMetric) else right

    shaped = output_of(output.output.reshape(logits_shape), output.targets.reshape(targets_shape).to(dtype))

    assert metric.measure(shaped).value == pytest.approx(100 * expected)
    assert sum(count for *_, count in ConfusionMatrix.from_output(shaped).cells()) == 9


@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3, 5, 6), (3, 3, 3), (3, 3, 3, 3), (2, 4, 2, 3, 3)])
def test_every_position_is_counted(shape):
    output = random_output(*shape, classes=shape[1])
    flat = output_of(output.output.movedim(1, -1).flatten(0, -2), output.targets.flatten())
    oracle = multiclass_accuracy(output.output, output.targets, shape[1], average="micro")

    assert AccuracyMetric().measure(output).value == pytest.approx(100 * oracle.item())
    assert AccuracyMetric().measure(output).count == output.targets.numel()
    for metric in OF_CLASSES:
        assert metric.measure(output).value == pytest.approx(metric.measure(flat).value, rel=1e-6)
        assert metric.measure(output).count == output.targets.numel()
    assert ConfusionMatrix.from_output(output).cells() == ConfusionMatrix.from_output(flat).cells()


@pytest.mark.parametrize("metric", [*OF_CLASSES, ConfusionMatrix], ids=metric_id)
@pytest.mark.parametrize(
    ("logits", "targets"),
    [
        ((4, 3), (4, 1)),
        ((4, 4), (4, 4)),
        ((3, 3, 3, 3), (3, 3, 3, 3)),
        ((4, 3, 5), (4, 3)),
        ((4, 1), (3,)),
        ((4,), (4, 3)),
    ],
)
def test_mismatched_target_shape_is_rejected_with_both_shapes(metric, logits, targets):
    output = output_of(torch.randn(logits), torch.randint(0, 2, targets))

    with pytest.raises(BuilderError) as caught:
        ConfusionMatrix.from_output(output) if metric is ConfusionMatrix else metric.measure(output)

    assert f"logits {logits} for targets {targets}" in str(caught.value)


@pytest.mark.parametrize("logits", [(2, 3), (2, 4, 4)])
def test_mismatched_token_shape_is_rejected_with_both_shapes(logits):
    output = SequenceOutput(LOSS, torch.randn(logits), None, torch.zeros(2, 3, dtype=torch.int64))

    for metric in (AccuracyMetric(), TopKAccuracyMetric(1), PerplexityMetric()):
        with pytest.raises(BuilderError, match=r"logits \(2, .*\) for targets \(2, 3\)"):
            metric.measure(output)


@pytest.mark.parametrize("metric", ONE_CLASS, ids=metric_id)
def test_soft_targets_of_single_logit_are_rejected(metric):
    with pytest.raises(BuilderError, match="targets of 0 and 1.*round"):
        metric.measure(output_of([0.5, -0.5], [0.9, 0.1]))


@pytest.mark.parametrize("metric", [HammingScore(), PrecisionMetric(), AurocMetric()], ids=metric_id)
def test_mismatched_label_shape_is_rejected(metric):
    output = MultiLabelClassificationOutput(LOSS, torch.randn(4, 3), torch.ones(4, 1))

    with pytest.raises(BuilderError, match=r"logits \(4, 3\) for targets \(4, 1\)"):
        metric.measure(output)


@pytest.mark.parametrize("targets", [[0, 1, 2], [1, 1, 1], [3, 3, 3]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_metric_predicts_first_of_equal_logits(targets, dtype):
    output = output_of(torch.tensor([[1.0, 1.0, 0.0, 1.0]] * 3).to(dtype), targets)
    right = 100 * targets.count(0) / 3

    assert [metric.measure(output).value for metric in ONE_CLASS] == pytest.approx([right] * 3)
    assert {predicted for _, predicted, _ in ConfusionMatrix.from_output(output).cells()} == {0}
    assert TopKAccuracyMetric(2).measure(output).value == pytest.approx(
        100 * sum(target in (0, 1) for target in targets) / 3
    )


def test_row_with_nan_is_never_correct():
    rows = [[NAN, 0.0, 1.0], [0.0, NAN, 1.0], [0.0, 1.0, NAN], [0.0, 1.0, 0.5]]
    output = output_of(rows, [0, 2, 1, 1])

    for metric in (*ONE_CLASS, TopKAccuracyMetric(2)):
        assert metric.measure(output).value == 25.0
    assert ConfusionMatrix.from_output(output).cells() == [(1, 1, 1)]
    assert AccuracyMetric().measure(output_of([NAN, NAN, 1.0], [0, 1, 1])).value == pytest.approx(100 / 3)


@pytest.mark.parametrize("metric", OF_CLASSES, ids=metric_id)
@pytest.mark.parametrize("shape", [(40, 4), (8, 4, 5), (40, 1)])
def test_ignored_target_is_not_counted(metric, shape):
    """`cross_entropy` ignores a target of -100 too."""
    if shape == (40, 1) and (isinstance(metric, PerplexityMetric) or "2" in metric.name):
        pytest.skip("needs two logits or more")
    output = random_output(*shape, classes=max(shape[1], 2))
    output.targets[::3] = -100
    kept = (output.targets != -100).flatten()
    rest = output_of(output.output.movedim(1, -1).flatten(0, -2)[kept], output.targets.flatten()[kept])

    measured = metric.measure(output)

    assert measured.value == pytest.approx(metric.measure(rest).value, rel=1e-6)
    assert measured.count == kept.sum()
    assert type(measured.count) is int


@pytest.mark.parametrize(
    "metric", [AccuracyMetric(pad_token=2), TopKAccuracyMetric(1, pad_token=2), PerplexityMetric(pad_token=2)]
)
def test_padding_and_ignored_targets_are_both_excluded(metric):
    targets = torch.tensor([[0, 1, 2, -100], [-100, 2, 1, 1]])
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))

    measured = metric.measure(SequenceOutput(LOSS, logits, None, targets))

    real = (targets != 2) & (targets != -100)
    assert measured.count == 4
    assert measured.value == metric.measure(output_of(logits[real], targets[real])).value


def test_perplexity_of_images_is_perplexity_of_pixels():
    output = random_output(3, 3, 3, 3, classes=3)
    oracle = F.cross_entropy(output.output.double(), output.targets).exp().item()

    assert PerplexityMetric().measure(output).value == pytest.approx(oracle, rel=1e-6)
    with pytest.raises(BuilderError, match="a logit for each class"):
        PerplexityMetric().measure(replace(output, output=torch.zeros(3, 1, 3, 3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_perplexity_of_half_precision_equals_double_precision(dtype):
    """Sums and logarithms in half precision are wrong in the third digit, and overflow at 65,504."""
    output = random_output(2_000, 50, classes=50)
    half = replace(output, output=output.output.to(dtype))
    oracle = F.cross_entropy(half.output.double(), output.targets).exp().item()

    assert PerplexityMetric().measure(half).value == pytest.approx(oracle, rel=1e-5)


def test_class_only_in_last_batch_counts_in_epoch():
    metric = RecallMetric()
    batches = [output_of([[2.0, 0, 0], [0, 2, 0]], [0, 1]), output_of([[0.0, 0, 2], [2, 0, 0]], [2, 2])]

    epoch = metric.measure(batches[0]) + metric.measure(batches[1])

    assert epoch.value == pytest.approx(100 * (1 + 1 + 0.5) / 3)


def test_a_class_beyond_the_logits_is_never_among_the_first_k_and_ties_are_cut_in_each_row():
    rows = [[1.0, 1.0, 1.0], [0.0, 1.0, 2.0], [NAN, 1.0, 2.0]]

    values = [TopKAccuracyMetric(2).measure(output_of(rows, [column] * 3)).value for column in range(4)]

    assert values == [pytest.approx(value / 3) for value in (100, 200, 100, 0)]


def table_output(logits, targets):
    """Return an output with a loss of 0."""
    return ClassificationOutput(torch.zeros(()), logits, targets)


COLLECTED = {
    "ties": (torch.zeros(3, 4), torch.tensor([0, 1, 0])),
    "ignored": (torch.eye(3, 4), torch.tensor([0, -100, 2])),
    "a NaN": (torch.tensor([[0.0, float("nan"), 2.0, 1.0]]).repeat(3, 1), torch.tensor([1, 2, 0])),
    "infinity": (torch.tensor([[0.0, float("inf"), 2.0, 1.0]]).repeat(3, 1), torch.tensor([1, 2, 1])),
    "padding": (torch.eye(3, 4), torch.tensor([0, 1, 3])),
}


@pytest.mark.parametrize("pad_token", [None, 3])
def test_collected_batches_have_the_accuracy_of_each(pad_token):
    metric = AccuracyMetric(pad_token=pad_token)
    outputs = [table_output(logits, targets.clone()) for logits, targets in COLLECTED.values()]
    expected = [metric.measure(output) for output in outputs]
    collector = metric.build_collector()

    assert [collector.add(output) for output in outputs] == [None] * len(outputs)
    for output in outputs:
        output.targets.zero_()  # a loader may use the memory of a batch again

    assert collector.measure() == expected
    assert collector.measure() == []


@pytest.mark.parametrize(
    "other",
    [
        table_output(torch.zeros(2, 4), torch.tensor([0, 1])),
        table_output(torch.zeros(3, 4, dtype=torch.float64), torch.tensor([0, 1, 0])),
        table_output(torch.zeros(3, 1), torch.tensor([0, 1, 0])),
        table_output(torch.zeros(3, 4, 2), torch.zeros(3, 2, dtype=torch.int64)),
    ],
    ids=["shape", "dtype", "one logit", "positions"],
)
def test_batch_unlike_the_first_is_not_collected(other):
    metric = AccuracyMetric()
    collector = metric.build_collector()

    assert collector.add(table_output(*COLLECTED["ties"])) is None
    assert collector.add(other) == metric.measure(other)
    assert len(collector.measure()) == 1


def test_metric_that_overrides_measure_is_not_collected():
    class Halved(AccuracyMetric):
        def measure(self, output):
            return Mean(super().measure(output).total / 2, output.size)

    assert Halved().build_collector() is None
