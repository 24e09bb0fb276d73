"""Values of an epoch against scikit-learn on all samples, with uneven, empty and one-class batches."""

import math
import operator
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from sklearn import config_context
from sklearn import metrics as sklearn
from torchmetrics.functional.text import word_error_rate

from stages.contracts.outputs import (
    ClassificationOutput,
    MultiLabelClassificationOutput,
    RegressionOutput,
    SequenceOutput,
)
from stages.metrics import (
    AccuracyMetric,
    AucPrMetric,
    AurocMetric,
    CharErrorRate,
    FBetaScoreMetric,
    HammingScore,
    LossMetric,
    MaeMetric,
    Mean,
    MseMetric,
    PerplexityMetric,
    PrecisionMetric,
    RecallMetric,
    TopKAccuracyMetric,
    WordErrorRate,
)

N = 30
PAD = 2


def of_classes(generator, classes=4, samples=N):
    """Return coarse logits, so that some are tied across samples; the last class is in no target."""
    logits = torch.randint(-8, 9, (samples, classes), generator=generator) / 4 + torch.arange(classes) / 64
    return ClassificationOutput(None, logits, torch.randint(0, classes - 1, (samples,), generator=generator))


def binary(generator):
    logits = torch.randint(-8, 9, (N, 1), generator=generator) / 4
    return ClassificationOutput(None, logits, torch.randint(0, 2, (N,), generator=generator))


def of_labels(generator):
    logits = torch.randint(-8, 9, (N, 3), generator=generator) / 4
    return MultiLabelClassificationOutput(None, logits, torch.randint(0, 2, (N, 3), generator=generator))


def of_numbers(generator):
    shape = (N, 2)
    return RegressionOutput(
        None, torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    )


def of_tokens(generator):
    logits = torch.randn(N, 5, 4, generator=generator)
    return SequenceOutput(None, logits, None, torch.randint(0, 4, (N, 5), generator=generator))


def flat(output):
    real = output.targets.flatten() != PAD
    return output.logits.flatten(0, 1)[real], output.targets.flatten()[real]


def predict_at_threshold(output):
    alone = output.targets.ndim == 2 or output.output.shape[1] == 1
    return (output.output.sigmoid() if alone else output.output.softmax(1)) > 0.5


def one_hot(output):
    if output.targets.ndim == 2:
        return output.targets
    return output.targets[:, None] if output.output.shape[1] == 1 else F.one_hot(output.targets, 4)


def likeliest(k):
    return lambda output: F.one_hot(output.output.topk(k).indices, 4).sum(1)


def count_score(score, average, decide, **options):
    """Return an oracle: scikit-learn's score over the classes that are a target or predicted."""

    def oracle(output):
        predicted, right = decide(output).long(), one_hot(output).long()
        if average == "micro":
            predicted, right = predicted.reshape(-1, 1), right.reshape(-1, 1)
        columns = [(y, x) for y, x in zip(right.T, predicted.T, strict=True) if (y + x).any()]
        scores = [score(y.numpy(), x.numpy(), zero_division=0, **options) for y, x in columns]
        return 100 * sum(scores) / max(len(scores), 1)

    return oracle


def likeliest_score(score, average, **options):
    """Return an oracle: scikit-learn's score of the most likely class."""

    def oracle(output):
        predicted = output.output.argmax(1).numpy()
        return 100 * score(output.targets.numpy(), predicted, average=average, zero_division=0, **options)

    return oracle


def area(score, average):
    """Return an oracle: scikit-learn's area, averaged over the classes that have one."""

    def oracle(output):
        alone = output.targets.ndim == 2 or output.output.shape[1] == 1
        scores = output.output.double() if alone else output.output.double().softmax(1)
        right = one_hot(output)
        if average == "micro":
            scores, right = scores.reshape(-1, 1), right.reshape(-1, 1)
        needed = {1} if score is sklearn.average_precision_score else {0, 1}
        pairs = [(y, x) for y, x in zip(right.T, scores.T, strict=True) if needed <= set(y.tolist())]
        areas = [score(y.numpy(), x.numpy()) for y, x in pairs]
        return 100 * sum(areas) / len(areas) if areas else math.nan

    return oracle


def words(output):
    predicted, targets = (
        [" ".join(map(str, row[: [*row, PAD].index(PAD)])) for row in tokens.tolist()]
        for tokens in (output.logits.argmax(-1), output.targets)
    )
    return 100 * word_error_rate(predicted, targets).item()


def perplexity(output):
    logits, targets = flat(output)
    return F.cross_entropy(logits.double(), targets).exp().item()


@dataclass(frozen=True)
class Case:
    metric: Any
    outputs: Any
    oracle: Any


def case(metric, outputs, oracle, *marks):
    name = f"{metric.name}, {outputs.__name__}"
    return pytest.param(Case(metric, outputs, oracle), id=name, marks=marks)


@pytest.fixture(autouse=True, scope="module")
def _without_checks_of_scikit_learn():
    """Skip the checks of scikit-learn's arguments, which take half of the time of its scores."""
    with config_context(assume_finite=True, skip_parameter_validation=True):
        yield


COUNTED = [
    case(
        kind(reduction=average, **rule),
        outputs,
        count_score(score, average, decide, **options)
        if decide
        else likeliest_score(score, average, **options),
        *([pytest.mark.long] if (row + column + number) % 2 else []),
    )
    for row, (kind, score, options) in enumerate(
        [
            (PrecisionMetric, sklearn.precision_score, {}),
            (RecallMetric, sklearn.recall_score, {}),
            (lambda **rule: FBetaScoreMetric(2.0, **rule), sklearn.fbeta_score, {"beta": 2.0}),
        ]
    )
    for column, average in enumerate(("macro", "micro"))
    for number, (outputs, rule, decide) in enumerate(
        [
            (of_classes, {"top_k": 1}, None),
            (of_classes, {"top_k": 2}, likeliest(2)),
            (of_classes, {"threshold": 0.5}, predict_at_threshold),
            (of_labels, {"threshold": 0.5}, predict_at_threshold),
            (binary, {"threshold": 0.5}, predict_at_threshold),
            (of_classes, {}, None),
            (of_labels, {}, predict_at_threshold),
            (binary, {}, predict_at_threshold),
        ]
    )
]
"""Each pair of a metric, an average and a rule is also in a case that is not long."""

AREAS = [
    case(kind(reduction=average), outputs, area(score, average))
    for kind, score in [
        (AurocMetric, sklearn.roc_auc_score),
        (AucPrMetric, sklearn.average_precision_score),
    ]
    for average in ("macro", "micro")
    for outputs in (of_classes, of_labels, binary)
]

OTHERS = [
    case(LossMetric(), of_numbers, lambda output: per_sample(output).mean().item()),
    case(
        AccuracyMetric(),
        of_classes,
        lambda output: 100 * sklearn.accuracy_score(output.targets, output.output.argmax(1)),
    ),
    case(
        AccuracyMetric(pad_token=PAD),
        of_tokens,
        lambda output: 100 * sklearn.accuracy_score(flat(output)[1], flat(output)[0].argmax(1)),
    ),
    case(
        TopKAccuracyMetric(2, pad_token=PAD),
        of_tokens,
        lambda output: 100 * sklearn.top_k_accuracy_score(flat(output)[1], flat(output)[0], labels=range(4)),
    ),
    case(PerplexityMetric(pad_token=PAD), of_tokens, perplexity),
    case(
        HammingScore(),
        of_labels,
        lambda output: 100 - 100 * sklearn.hamming_loss(output.targets, predict_at_threshold(output)),
    ),
    case(MaeMetric(), of_numbers, lambda output: sklearn.mean_absolute_error(output.targets, output.output)),
    case(MseMetric(), of_numbers, lambda output: sklearn.mean_squared_error(output.targets, output.output)),
    case(CharErrorRate(pad_token=PAD), of_tokens, words),
    case(WordErrorRate(pad_token=PAD), of_tokens, words),
    case(
        WordErrorRate(pad_token=PAD, decode=lambda row: [f"word{token}" for token in row]), of_tokens, words
    ),
]


def per_sample(output):
    return output.targets.double().flatten(1).mean(1) if output.targets.ndim > 1 else output.targets.double()


def part(output, rows):
    """Return some rows of *output*, with their mean loss: NaN without rows, as in torch."""
    tensors = {
        each.name: getattr(output, each.name)[rows]
        for each in fields(output)
        if isinstance(getattr(output, each.name), torch.Tensor) and each.name != "loss"
    }
    return replace(output, loss=per_sample(output)[rows].mean(), **tensors)


def in_batches(output, cuts, ordered):
    """Return *output* cut at *cuts*: two equal cuts are an empty batch; in class order, one-class batches."""
    rows = per_sample(output).argsort() if ordered else torch.arange(len(output.targets))
    edges = [0, *sorted(cuts), len(output.targets)]
    return [part(output, rows[start:end]) for start, end in pairwise(edges)]


@pytest.mark.parametrize("case", COUNTED + AREAS + OTHERS)
@given(cuts=st.lists(st.integers(0, N), max_size=6), seed=st.integers(0, 999), ordered=st.booleans())
@settings(max_examples=examples(20), deadline=None)
def test_epoch_value_does_not_depend_on_batching(case, cuts, seed, ordered):
    output = case.outputs(torch.Generator().manual_seed(seed))

    measured = reduce(
        operator.add, [case.metric.measure(batch) for batch in in_batches(output, cuts, ordered)]
    )

    assert measured.value == pytest.approx(case.oracle(output), rel=1e-6, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("case", COUNTED + AREAS + OTHERS)
def test_empty_batch_is_nan_and_adds_no_weight(case):
    output = case.outputs(torch.Generator().manual_seed(0))
    empty, full = (case.metric.measure(part(output, slice(0, end))) for end in (0, N))

    assert math.isnan(empty.value)
    assert empty.count == 0
    assert (empty + empty).count == 0
    assert (empty + full).value == (full + empty).value == full.value


@pytest.mark.parametrize("metric", [AccuracyMetric, PerplexityMetric, CharErrorRate, WordErrorRate])
def test_padding_is_not_counted(metric):
    targets = torch.tensor([[0, 1, PAD, PAD], [PAD] * 4])
    output = SequenceOutput(torch.tensor(0.0), torch.zeros(2, 4, 3), None, targets)

    assert metric(pad_token=PAD).measure(output).count == 2


@pytest.mark.parametrize(
    "case", [each for each in COUNTED + AREAS + OTHERS if not getattr(each.values[0].metric, "decode", None)]
)
def test_measuring_and_adding_do_not_block_on_the_device(case):
    """A tensor on the meta device has no values, so reading one fails."""
    output = part(case.outputs(torch.Generator()), slice(None))
    tensors = {
        each.name: getattr(output, each.name).to("meta")
        for each in fields(output)
        if getattr(output, each.name) is not None
    }

    measured = case.metric.measure(replace(output, **tensors))

    assert measured + measured


def test_area_of_nan_scores_is_nan():
    output = binary(torch.Generator().manual_seed(0))

    assert math.isnan(AurocMetric().measure(replace(output, output=output.output * math.nan)).value)


def test_perplexity_beyond_float64_is_infinite():
    output = ClassificationOutput(None, torch.tensor([[0.0, 1e6]]), torch.tensor([0]))

    assert PerplexityMetric().measure(output).value == math.inf


def test_mean_of_one_batch_is_exact():
    mean = torch.tensor(0.1)

    assert Mean.from_mean(mean, 37).value == mean.item()
