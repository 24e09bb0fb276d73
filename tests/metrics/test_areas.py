"""AUROC and AUC-PR: ties, copies of scores, and one sort for all classes."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn import metrics as sklearn
from torch.utils._python_dispatch import TorchDispatchMode

from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput
from stages.metrics import AucPrMetric, AurocMetric

AREAS = [AurocMetric, AucPrMetric]
LOSS = torch.tensor(0.0)


def of_classes(samples, classes):
    generator = torch.Generator().manual_seed(samples)
    targets = torch.randint(0, classes, (samples,), generator=generator)
    return ClassificationOutput(LOSS, torch.randn(samples, classes, generator=generator), targets)


def of_labels(samples, labels, dtype=torch.int64):
    output = of_classes(samples, labels)
    return MultiLabelClassificationOutput(LOSS, output.output.round(decimals=1), one_hot(output).to(dtype))


def one_hot(output):
    return torch.nn.functional.one_hot(output.targets, output.output.shape[1])


class SortCounter(TorchDispatchMode):
    """Counts the sorts in its ``with`` block."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "sort" in func.name()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("metric", AREAS)
def test_all_classes_are_sorted_at_once(metric):
    measured = metric().measure(of_classes(64, 1000))

    with SortCounter() as sorts:
        assert 0 < measured.value < 100

    assert sorts.count == 1


@pytest.mark.parametrize("metric", AREAS)
def test_macro_value_is_mean_of_class_values(metric):
    """With 30,000 samples only some of the classes are sorted together."""
    output = of_labels(30_000, 20)

    columns = zip(output.output.T.unsqueeze(2), output.targets.T.unsqueeze(2), strict=True)
    singles = [metric().measure(MultiLabelClassificationOutput(LOSS, *column)).value for column in columns]

    areas = torch.tensor(singles, dtype=torch.float64) / 100
    assert metric().measure(output).value == pytest.approx(100 * areas.mean().item(), rel=1e-14)
    assert len(set(singles)) > 10


def test_scores_equal_in_float32_softmax_are_not_tied():
    """The softmax of both rows is (0, 1) in float32, and differs in float64."""
    output = ClassificationOutput(LOSS, torch.tensor([[0.0, 20.0], [0.0, 25.0]]), torch.tensor([0, 1]))

    assert output.output.softmax(1)[:, 1].unique().numel() == 1
    assert AurocMetric().measure(output).value == 100.0


@pytest.mark.parametrize("metric", AREAS)
def test_area_of_two_logits_is_that_of_their_difference(metric):
    """The softmax of a logit that is 40 above the other one is 1 in float64, as that of 50 above."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 2, (200,), generator=generator)
    logits = torch.randn(200, generator=generator) * 90 + targets * 30

    two = metric().measure(ClassificationOutput(LOSS, torch.stack([-logits, logits], 1) / 2, targets))

    pairs = (ClassificationOutput(LOSS, sign * logits, targets != (sign < 0)) for sign in (1, -1))
    assert two.value == pytest.approx(sum(metric().measure(pair).value for pair in pairs) / 2)
    assert logits.abs().median() > 37


@pytest.mark.parametrize("metric", AREAS)
def test_equal_probabilities_of_classes_are_ties(metric):
    """A model that has learned nothing has the AUROC of chance, and the classes of a row are tied too."""
    output = ClassificationOutput(LOSS, torch.zeros(90, 3), torch.arange(90) % 3)

    assert metric("micro").measure(output).value == pytest.approx(
        {"AUROC": 50, "AUC-PR": 100 / 3}[metric.title]
    )


@pytest.mark.parametrize("metric", AREAS)
def test_infinite_scores_tie_like_finite_scores(metric):
    """Large logits are infinite in half precision; the order of the samples must not matter."""
    logits = torch.tensor([[math.inf], [math.inf], [-math.inf], [-math.inf]])
    finite = logits.clamp(-9, 9)
    for targets in ([[1], [0], [1], [0]], [[0], [1], [0], [1]]):
        output = MultiLabelClassificationOutput(LOSS, logits, torch.tensor(targets))

        assert metric().measure(output).value == metric().measure(replace(output, output=finite)).value
        assert AurocMetric().measure(output).value == 50.0


@pytest.mark.parametrize("metric", AREAS)
@pytest.mark.parametrize(
    "output",
    [of_classes(9, 3), of_labels(9, 3), of_labels(9, 3, torch.bool)],
    ids=["classes", "labels", "bool"],
)
def test_measurement_does_not_change_if_output_is_overwritten(metric, output):
    expected = metric().measure(output).value

    overwritten = replace(output, output=output.output.clone(), targets=output.targets.clone())
    measured = metric().measure(overwritten)
    overwritten.output.zero_()
    overwritten.targets.zero_()

    assert measured.value == expected


@pytest.mark.parametrize(
    ("output", "has_value"),
    [
        (of_classes(8, 100), True),
        (of_classes(1, 101), False),
        (of_labels(8, 1000), False),
        (replace(of_classes(2, 3), output=torch.randn(2, 3, 1), targets=torch.tensor([[0], [1]])), False),
        (replace(of_classes(2, 2), output=torch.randn(2, 1)), True),
    ],
    ids=["100 classes", "101 classes", "1,000 labels", "positions", "one logit"],
)
def test_batch_has_value_only_for_few_classes(output, has_value):
    measured = AurocMetric().measure(output)

    assert measured.has_batch_value == (measured + measured).has_batch_value == has_value


def test_auroc_of_many_classes_equals_scikit_learn():
    output = of_classes(3000, 150)
    expected = sklearn.roc_auc_score(one_hot(output), output.output.double().softmax(1), average="macro")

    assert AurocMetric().measure(output).value == pytest.approx(100 * expected, rel=1e-12)
