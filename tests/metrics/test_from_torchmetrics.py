"""Metrics of torchmetrics added over batches, against torchmetrics on all samples at once."""

import math
import operator
import pickle
from functools import reduce
from itertools import pairwise, repeat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import Metric
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryF1Score,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassHingeLoss,
)
from torchmetrics.functional.classification import multiclass_jaccard_index
from torchmetrics.functional.image import (
    multiscale_structural_similarity_index_measure,
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)
from torchmetrics.functional.text import bleu_score, rouge_score
from torchmetrics.regression import MeanAbsoluteError, SpearmanCorrCoef
from torchmetrics.text import Perplexity
from torchmetrics.wrappers import MinMaxMetric

from stages.contracts.config import Use
from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, RegressionOutput, SequenceOutput
from stages.metrics import TorchMetric, build_metric
from stages.metrics.state import Chunks

N = 8
PAD = 0
LOSS = torch.tensor(0.0)


def images(generator, size=16):
    targets, noise = torch.rand(2, N, 1, size, size, generator=generator)
    return lambda rows: RegressionOutput(LOSS, targets[rows] + noise[rows] / 4, targets[rows])


def large_images(generator):
    return images(generator, 176)


def masks(generator):
    logits = torch.randn(N, 3, 4, 4, generator=generator)
    targets = torch.randint(0, 3, (N, 4, 4), generator=generator)
    return lambda rows: ClassificationOutput(LOSS, logits[rows], targets[rows])


def masks_with_ignored(generator):
    output = masks(generator)(slice(None))
    targets = torch.where(torch.rand(N, 4, 4, generator=generator) < 0.3, -100, output.targets)
    return lambda rows: ClassificationOutput(LOSS, output.output[rows], targets[rows])


def binary(generator):
    logits, targets = torch.randn(N, 1, generator=generator), torch.randint(0, 2, (N,), generator=generator)
    return lambda rows: ClassificationOutput(LOSS, logits[rows], targets[rows])


def tokens(generator):
    predictions, targets = torch.randint(0, 4, (2, N, 9), generator=generator)
    logits = torch.randn(N, 9, 4, generator=generator)
    return lambda rows: SequenceOutput(LOSS, logits[rows], predictions[rows], targets[rows])


def sentences(rows):
    return [" ".join(map(str, row[: [*row, PAD].index(PAD)])) for row in rows.tolist()]


def rouge(output):
    predictions, targets = sentences(output.predictions), sentences(output.targets)
    return 100 * rouge_score(predictions, targets, rouge_keys="rougeL")["rougeL_fmeasure"].item()


def bleu(output):
    targets = [[target] for target in sentences(output.targets)]
    return 100 * bleu_score(sentences(output.predictions), targets, n_gram=2).item()


def dice(output):
    predicted, targets = (F > 0 for F in (output.output.argmax(1), output.targets))
    hits = (predicted & targets & (output.output.argmax(1) == output.targets)).sum()
    return (2 * hits / (predicted.sum() + targets.sum())).item()


def mean_iou(output):
    is_valued = output.targets != -100
    return multiclass_jaccard_index(output.output.argmax(1)[is_valued], output.targets[is_valued], 3).item()


def psnr(output):
    images_ = zip(output.output, output.targets, strict=True)
    return torch.stack([peak_signal_noise_ratio(*pair, data_range=1.0) for pair in images_]).mean().item()


def oracle_of(metric):
    def oracle(output):
        predictions = output.logits if isinstance(output, SequenceOutput) else output.output
        return metric(predictions, output.targets).item()

    return oracle


def probability_oracle(metric):
    def oracle(output):
        return metric(output.output.sigmoid().squeeze(1), output.targets).item()

    return oracle


CASES = [
    ({"kind": "bleu", "n_gram": 2, "pad_token": PAD}, tokens, bleu),
    ({"kind": "rouge_l", "pad_token": PAD}, tokens, rouge),
    ({"kind": "dice", "num_classes": 3}, masks, dice),
    ({"kind": "mean_iou", "num_classes": 3}, masks_with_ignored, mean_iou),
    ({"kind": "psnr"}, images, psnr),
    (
        {"kind": "ssim"},
        images,
        oracle_of(lambda *pair: structural_similarity_index_measure(*pair, data_range=1.0)),
    ),
    (
        {"kind": "ms_ssim"},
        large_images,
        oracle_of(lambda *pair: multiscale_structural_similarity_index_measure(*pair, data_range=1.0)),
    ),
    ({"kind": "torchmetrics.text:Perplexity", "ignore_index": PAD}, tokens, oracle_of(Perplexity(PAD))),
    ({"kind": "torchmetrics.classification:BinaryAUROC"}, binary, probability_oracle(BinaryAUROC())),
    ({"kind": "torchmetrics.classification:BinaryF1Score"}, binary, probability_oracle(BinaryF1Score())),
]


@pytest.mark.parametrize(("params", "data", "oracle"), CASES, ids=[params["kind"] for params, *_ in CASES])
@given(cuts=st.lists(st.integers(0, N), max_size=4), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_epoch_value_does_not_depend_on_batching(params, data, oracle, cuts, seed):
    metric = build_metric(Use.model_validate(params))
    rows = data(torch.Generator().manual_seed(seed))

    edges = [0, *sorted(cuts), N]
    measured = reduce(operator.add, [metric.measure(rows(slice(a, b))) for a, b in pairwise(edges)])

    assert measured.value == pytest.approx(oracle(rows(slice(None))), abs=1e-5)
    assert measured.count == N


class Extremes(Metric):
    """A metric with a state for each way of joining."""

    def __init__(self):
        super().__init__()
        for name, start in (("sum", 0.0), ("mean", 0.0), ("min", math.inf), ("max", -math.inf)):
            self.add_state(f"{name}_", torch.tensor(start), dist_reduce_fx=name)
        self.add_state("cat_", [], dist_reduce_fx="cat")
        self.add_state("none_", [], dist_reduce_fx=None)

    def update(self, predictions, _):
        self.sum_, self.mean_ = predictions.sum(), predictions.mean()
        self.min_, self.max_ = predictions.min(), predictions.max()
        self.cat_.append(predictions)
        self.none_.append(predictions.sum())

    def compute(self):
        states = {name: getattr(self, f"{name}_") for name in ("sum", "mean", "min", "max")}
        return states | {"cat": torch.cat(self.cat_).median(), "none": torch.stack(self.none_).sum()}


@pytest.mark.parametrize(
    ("key", "expected"), [("sum", 15), ("mean", 3), ("min", 1), ("max", 5), ("cat", 3), ("none", 15)]
)
def test_states_are_joined_like_those_of_processes(key, expected):
    metric = TorchMetric(Extremes(), key=key)

    batches = [torch.tensor(batch) for batch in ([4.0], [1.0, 5.0], [3.0, 2.0])]
    measured = [metric.measure(RegressionOutput(LOSS, batch, batch)) for batch in batches]

    assert reduce(operator.add, measured).value == pytest.approx(expected)
    assert [each.count for each in measured] == [1, 2, 2]


@pytest.mark.parametrize("metric", [MulticlassHingeLoss(3), MulticlassF1Score(3)])
def test_batch_whose_targets_are_all_ignored_counts_nothing(metric):
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([0, 1, -100, -100])
    measure = TorchMetric(metric).measure

    first, ignored = (
        measure(ClassificationOutput(LOSS, logits[rows], targets[rows])) for rows in (slice(2), slice(2, 4))
    )

    assert ignored.count == 0
    assert (first + ignored).value == first.value


def test_sum_of_many_batches_is_exact():
    """The mean of equal errors is that error, also after 2**17 batches, whose float32 sum is 0.2 % lower."""
    errors = torch.full((32,), 0.1)
    batch = TorchMetric(MeanAbsoluteError()).measure(RegressionOutput(LOSS, errors, torch.zeros(32)))

    total = reduce(operator.add, repeat(batch, 1 << 17))

    assert total.value == pytest.approx(batch.value, rel=1e-9)


@pytest.mark.parametrize(
    "metric", [BinaryAUROC(), MulticlassAUROC(3), MulticlassCalibrationError(3), MulticlassF1Score(3)]
)
def test_ignored_targets_are_left_out(metric):
    """Without ignore_index torchmetrics counts -100 as a class, or raises an error for most metrics."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(*((60,) if isinstance(metric, BinaryAUROC) else (60, 3)), generator=generator)
    targets = torch.randint(0, logits.ndim + 1, (60,), generator=generator)
    is_counted = torch.arange(60) % 3 > 0

    ignored = ClassificationOutput(LOSS, logits, targets.where(is_counted, -100))
    measured = TorchMetric(metric).measure(ignored).value

    counted = ClassificationOutput(LOSS, logits[is_counted], targets[is_counted])
    assert measured == pytest.approx(TorchMetric(metric).measure(counted).value)


def test_measurement_does_not_change_with_next_batch():
    metric = TorchMetric(BinaryAUROC())
    rows = binary(torch.Generator().manual_seed(1))

    first = metric.measure(rows(slice(0, 4)))
    before = first.value
    metric.measure(rows(slice(4, 8)))

    assert first.value == before
    assert pickle.loads(pickle.dumps(first)).value == before  # noqa: S301


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (MinMaxMetric(MeanMetric()), "has no states itself"),
        (Extremes(), "computes no single number but sum, mean, min, max, cat, none"),
        (MulticlassConfusionMatrix(3), "no single number but a Tensor of shape (3, 3)"),
    ],
)
def test_metric_without_a_single_additive_number_is_rejected(metric, message):
    output = ClassificationOutput(LOSS, torch.eye(3), torch.arange(3))

    with pytest.raises(BuilderError) as caught:
        _ = TorchMetric(metric).measure(output).value

    assert message in str(caught.value)


def test_chunks_keep_order_and_are_rarely_copied():
    chunks = reduce(operator.add, (Chunks(((number,),)) for number in range(1000)))

    assert list(chunks) == list(range(1000))
    assert len(chunks.runs) < 12


@pytest.mark.parametrize(
    ("metric", "output"),
    [
        (SpearmanCorrCoef(), RegressionOutput(LOSS, torch.arange(9.0), torch.arange(9.0) % 4)),
        (BinaryAUROC(), ClassificationOutput(LOSS, torch.arange(-4.0, 5), torch.arange(9) % 2)),
    ],
)
def test_measurement_does_not_change_if_output_is_overwritten(metric, output):
    measured, expected = TorchMetric(metric).measure(output), TorchMetric(metric).measure(output).value

    output.output.zero_()
    output.targets.zero_()

    assert measured.value == expected != 0


@pytest.mark.parametrize(
    ("smoothing", "precisions"),
    [
        ("none", (4 / 5, 2 / 4, 0)),
        ("add_epsilon", (4 / 5, 2 / 4, 0.1 / 3, 0.1 / 2)),
        ("exponential", (4 / 5, 2 / 4, 1 / 2 / 3, 1 / 4 / 2)),
    ],
)
def test_smoothing_replaces_the_counts_of_orders_without_a_match(smoothing, precisions):
    metric = build_metric(Use.model_validate({"kind": "bleu", "smoothing": smoothing}))
    predictions, targets = torch.tensor([[1, 2, 9, 3, 4]]), torch.tensor([[1, 2, 5, 3, 4]])

    measured = metric.measure(SequenceOutput(LOSS, torch.zeros(1, 5, 10), predictions, targets))

    assert measured.value == pytest.approx(100 * math.prod(precisions) ** (1 / 4))


def test_error_of_a_perfect_image_is_the_epsilon_of_psnr():
    image = torch.rand(2, 1, 4, 4)
    output = RegressionOutput(LOSS, image + torch.tensor([0.0, 0.1]).reshape(2, 1, 1, 1), image)

    measured = build_metric(Use.model_validate({"kind": "psnr", "epsilon": 1e-10})).measure(output)

    assert measured.value == pytest.approx((100 + 20) / 2, rel=1e-4)
    assert build_metric(Use.model_validate({"kind": "psnr"})).measure(output).value == math.inf


def test_constants_of_similarity_are_those_of_torchmetrics():
    options = {"kind": "ssim", "data_range": 2.0, "k1": 0.02, "k2": 0.05}
    output = images(torch.Generator().manual_seed(1))(slice(None))

    value = build_metric(Use.model_validate(options)).measure(output).value

    pair = (output.output, output.targets)
    reference = structural_similarity_index_measure(*pair, data_range=2.0, k1=0.02, k2=0.05)
    assert value == pytest.approx(reference.item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["dice", "mean_iou"])
def test_single_logit_above_0_predicts_class_1_of_a_mask(kind):
    """The areas equal those of two logits, of which the first one is 0."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(N, 1, 4, 4, generator=generator)
    targets = torch.randint(0, 2, (N, 4, 4), generator=generator)
    metric = build_metric(Use.model_validate({"kind": kind, "num_classes": 2}))
    two = torch.cat([torch.zeros_like(logits), logits], dim=1)

    single = metric.measure(ClassificationOutput(LOSS, logits, targets))

    assert single.value == metric.measure(ClassificationOutput(LOSS, two, targets)).value


@pytest.mark.parametrize("kind", ["dice", "mean_iou"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixel_whose_logits_contain_nan_is_never_correct(kind, channels):
    targets = torch.arange(16).reshape(1, 4, 4) % max(2, channels)
    metric = build_metric(Use.model_validate({"kind": kind, "num_classes": max(2, channels)}))

    measured = metric.measure(ClassificationOutput(LOSS, torch.full((1, channels, 4, 4), math.nan), targets))

    assert measured.value == 0
