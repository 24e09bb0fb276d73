"""The values, weights and names of 81 metrics on four batches, against those that Burn 0.22.1 computed."""

import runpy
from functools import partial
from itertools import accumulate
from operator import add
from pathlib import Path

import pytest
import torch
from burn_files import BURN_022, needs_files

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
    PerplexityMetric,
    PrecisionMetric,
    RecallMetric,
    TopKAccuracyMetric,
    WordErrorRate,
)
from stages.metrics.from_torchmetrics import bleu, dice, ms_ssim, psnr, rouge_l, ssim

PAGE = Path(__file__).parents[2] / "stages/learner/from_burn.md"
PAD = 2
BATCHES = [slice(0, 8), slice(8, 16), slice(16, 24), slice(24, 27)]
SCORES = {"precision": PrecisionMetric, "recall": RecallMetric, "fbeta2": partial(FBetaScoreMetric, 2.0)}
AREAS = {"auroc": AurocMetric, "auc_pr": AucPrMetric}
NO_LOSS = torch.tensor(0.0)


def classes(data, rows, logits="mc", targets="mc"):
    return ClassificationOutput(
        NO_LOSS, data[f"{logits}.logits"][rows], data[f"{targets}.targets"][rows].long()
    )


def ranked_logits(data, rows):
    is_target = torch.nn.functional.one_hot(data["mc.targets"].long(), 5)
    return MultiLabelClassificationOutput(NO_LOSS, data["mc.logits"][rows], is_target[rows])


def labels(data, rows):
    return MultiLabelClassificationOutput(NO_LOSS, data["ml.logits"][rows], data["ml.targets"][rows])


def tokens(data, rows, predictions="seq.pred"):
    predicted, targets = (data[name][rows].long() for name in (predictions, "seq.ref"))
    return SequenceOutput(NO_LOSS, data["seq.logits"][rows], predicted, targets)


def images(data, rows, output="img.out"):
    return RegressionOutput(NO_LOSS, data[output][rows], data["img.ref"][rows])


def large_images(data, rows):
    return RegressionOutput(NO_LOSS, data["big.out"][rows], data["big.ref"][rows])


def masks(data, rows):
    return ClassificationOutput(NO_LOSS, data["seg.logits"][rows], data["seg.targets"][rows].long())


def losses(data, rows):
    loss = data["loss"][rows]
    return RegressionOutput(loss.mean(), loss, loss)


CASES = {
    "accuracy": (AccuracyMetric, classes),
    "accuracy_pad": (partial(AccuracyMetric, pad_token=PAD), classes),
    "perplexity": (PerplexityMetric, classes),
    "perplexity_pad": (partial(PerplexityMetric, pad_token=PAD), classes),
    "hamming": (HammingScore, labels),
    "hamming_03": (partial(HammingScore, threshold=0.3), labels),
    "psnr": (psnr, images),
    "psnr_perfect": (partial(psnr, epsilon=1e-10), partial(images, output="img.perfect")),
    "ssim": (ssim, images),
    "ms_ssim": (ms_ssim, large_images),
    "dice": (partial(dice, 3), masks),
    "dice_bg": (partial(dice, 3, include_background=True), masks),
    "accuracy_padall": (partial(AccuracyMetric, pad_token=PAD), partial(classes, targets="padall")),
    "perplexity_padall": (partial(PerplexityMetric, pad_token=PAD), partial(classes, targets="padall")),
    "loss": (LossMetric, losses),
    "loss_means": (LossMetric, losses),
    "fbeta1_mc3": (partial(FBetaScoreMetric, top_k=1), partial(classes, logits="mc3")),
    "fbeta1_neg": (partial(FBetaScoreMetric, threshold=0.99), partial(classes, logits="bin", targets="neg")),
}
for k in (1, 2, 3):
    CASES[f"top_{k}"] = partial(TopKAccuracyMetric, k), classes
    CASES[f"top_{k}_pad"] = partial(TopKAccuracyMetric, k, pad_token=PAD), classes
for reduction in ("macro", "micro"):
    for name, score in SCORES.items():
        for k in (1, 2):
            CASES[f"{name}_mc_{k}_{reduction}"] = partial(score, top_k=k, reduction=reduction), classes
        of_labels = FBetaScoreMetric if name == "fbeta2" else score
        label_name = name.replace("2", "1")
        CASES[f"{label_name}_ml_{reduction}"] = partial(of_labels, threshold=0.4, reduction=reduction), labels
        if name != "recall":
            rule = partial(of_labels, threshold=0.9, reduction=reduction)
            CASES[f"{label_name}_ml90_{reduction}"] = rule, labels
    for name, area in AREAS.items():
        CASES[f"{name}_mc_{reduction}"] = partial(area, reduction=reduction), classes
        CASES[f"{name}_mclogits_{reduction}"] = partial(area, reduction=reduction), ranked_logits
        CASES[f"{name}_ml_{reduction}"] = partial(area, reduction=reduction), labels
for name, score in SCORES.items():
    CASES[f"{name}_bin"] = partial(score, threshold=0.5), partial(classes, logits="bin", targets="bin")
    if name != "fbeta2":
        CASES[f"{name}_mc3"] = partial(score, top_k=1), partial(classes, logits="mc3")
        CASES[f"{name}_neg"] = (
            partial(score, threshold=0.5),
            partial(classes, logits="bin", targets="neg"),
        )
for name, area in AREAS.items():
    for targets in ("bin", "neg"):
        CASES[f"{name}_{targets}"] = area, partial(classes, logits="bin", targets=targets)
for name, text in {"cer": CharErrorRate, "wer": WordErrorRate, "rouge_l": rouge_l}.items():
    CASES[name] = partial(text, pad_token=0), tokens
    CASES[f"{name}_mid"] = partial(text, pad_token=0), partial(tokens, predictions="seq.predmid")
    CASES[f"{name}_nopad"] = text, tokens
for n in (1, 2, 4):
    CASES[f"bleu_{n}"] = partial(bleu, n, pad_token=0), tokens

DIFFERENCES = {
    "precision_ml_macro": "name of a score of labels",
    "precision_ml90_macro": "name of a score of labels",
    "precision_ml_micro": "name of a score of labels",
    "precision_ml90_micro": "name of a score of labels",
    "hamming": "weight of a batch in the Hamming score",
    "hamming_03": "weight of a batch in the Hamming score",
    "cer_mid": "CER with padding inside a sequence",
    "bleu_1": "BLEU of an epoch",
    "bleu_2": "BLEU of an epoch",
    "bleu_4": "BLEU of an epoch",
    "ssim": "SSIM at the edges of an image",
    "ms_ssim": "MS-SSIM at the edges of an image",
    "dice": "name of Dice",
    "dice_bg": "name of Dice",
    "fbeta1_neg": "F score without targets and predictions",
    "perplexity_padall": "perplexity of a batch of padding",
    "loss_means": "loss of an epoch",
}
"""The case and the first cell of its row in the table of differences."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("inputs"))  # the program writes a file
        arrays = runpy.run_path(str(BURN_022 / "metrics_inputs.py"))["out"]
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.fixture(scope="module")
def expected():
    lines = (BURN_022 / "metrics_expected.txt").read_text().splitlines()
    return {name: rest for name, *rest in (line.split(" | ") for line in lines)}


def measure(name, data):
    """Return the name and the value of the epoch, and values and weights of its parts and batches."""
    build, output = CASES[name]
    metric = build()
    metric.burn = "0.22"
    rows = [slice(0, 2), slice(2, 3)] if name == "ms_ssim" else BATCHES
    batches = [metric.measure(output(data, part)) for part in rows]
    parts = list(accumulate(batches, add))
    pairs = [[(state.value, state.count) for state in states] for states in (parts, batches)]
    return metric.name, parts[-1].value, *pairs


def equals_burn(measured, texts):
    title, epoch, *pairs = measured
    is_equal = title == texts[3] and epoch == pytest.approx(float(texts[0]), rel=1e-6, nan_ok=True)
    for ours, text in zip(pairs, texts[1:3], strict=True):
        theirs = [tuple(map(float, pair.split("/"))) for pair in text.split() if pair != "none"]
        for pair, value in zip(ours, theirs, strict=False):
            is_equal &= pair == pytest.approx(value, rel=1e-6, nan_ok=True)
    return is_equal


@needs_files
def test_every_case_of_burn_is_compared(expected):
    assert expected.keys() == CASES.keys()
    assert len(expected) == 81


@needs_files
@pytest.mark.parametrize("name", CASES)
def test_metric_equals_that_of_burn_unless_the_page_states_the_difference(name, data, expected):
    is_equal = equals_burn(measure(name, data), expected[name])

    assert is_equal == (name not in DIFFERENCES)
    if name in DIFFERENCES:
        assert f"\n| {DIFFERENCES[name]} |" in PAGE.read_text()
