"""Metrics of Burn's that are taken from torchmetrics, by Burn's names.

They need torchmetrics, which the extra ``metrics`` installs.
"""

import warnings
from dataclasses import dataclass
from typing import Any

from stages.contracts.extras import load_extra
from stages.contracts.outputs import ClassificationOutput, RegressionOutput, SequenceOutput
from stages.contracts.text import number
from stages.metrics.sequences import predicted, rows
from stages.metrics.torch_metric import TorchMetric


@dataclass(frozen=True)
class Sentences:
    """Predictions and references as text, with a token's number for a word. Waits for the device."""

    pad_token: int | None
    """Where a sequence ends."""

    def __call__(self, output: SequenceOutput) -> tuple[Any, ...]:
        """Sentences, and for each a list of its one reference."""
        said, meant = (
            [" ".join(map(str, row)) for row in rows(tokens, self.pad_token)]
            for tokens in (predicted(output), output.targets)
        )
        return said, [[reference] for reference in meant]


def likeliest(output: ClassificationOutput) -> tuple[Any, ...]:
    """The class of each pixel (B, H, W), from logits (B, C, H, W)."""
    return output.output.argmax(dim=1), output.targets


def bleu(n_gram: int = 4, pad_token: int | None = None, *, smooth: bool = False) -> TorchMetric:
    """BLEU of the whole epoch as one corpus, over token numbers. Burn averages that of its batches."""
    metric = _torchmetrics("text", "bleu").BLEUScore(n_gram=n_gram, smooth=smooth)
    return TorchMetric(
        metric,
        f"BLEU-{n_gram}",
        "%",
        times=100.0,
        inputs=Sentences(pad_token),
        measures=SequenceOutput,
    )


def rouge_l(pad_token: int | None = None) -> TorchMetric:
    """The mean F score of the longest common subsequence, over token numbers."""
    metric = _torchmetrics("text", "rouge_l").ROUGEScore(
        rouge_keys="rougeL", normalizer=str, tokenizer=str.split
    )
    return TorchMetric(
        metric,
        "ROUGE-L",
        "%",
        times=100.0,
        key="rougeL_fmeasure",
        inputs=Sentences(pad_token),
        measures=SequenceOutput,
    )


def dice(num_classes: int, *, include_background: bool = False) -> TorchMetric:
    """The overlap of all classes together over the epoch, but for the background (class 0)."""
    segmentation = _torchmetrics("segmentation", "dice")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # "micro" will not stay the default
        metric = segmentation.DiceScore(
            num_classes,
            include_background=include_background,
            average="micro",
            aggregation_level="global",
            input_format="index",
        )
    return TorchMetric(metric, "2D Dice Metric", decimals=4, inputs=likeliest, measures=ClassificationOutput)


def psnr(max_pixel: float = 1.0) -> TorchMetric:
    """The mean over images (B, C, H, W) of the signal above the noise; infinite where an image is perfect."""
    metric = _torchmetrics("image", "psnr").PeakSignalNoiseRatio(
        data_range=float(max_pixel), dim=(1, 2, 3), reduction="elementwise_mean"
    )
    return TorchMetric(metric, f"PSNR@{number(max_pixel)}", "dB", measures=RegressionOutput)


def ssim(data_range: float = 1.0, sigma: float = 1.5) -> TorchMetric:
    """The mean over images (B, C, H, W) of how alike their structures are."""
    metric = _torchmetrics("image", "ssim").StructuralSimilarityIndexMeasure(
        sigma=sigma, data_range=float(data_range)
    )
    name = f"SSIM (dr={number(data_range)}, w={_window(sigma)}, σ={number(sigma)})"
    return TorchMetric(metric, name, decimals=4, measures=RegressionOutput)


def ms_ssim(data_range: float = 1.0, sigma: float = 1.5) -> TorchMetric:
    """`ssim` at five sizes; at σ 1.5, images of 176 pixels or more, high and wide."""
    metric = _torchmetrics("image", "ms_ssim").MultiScaleStructuralSimilarityIndexMeasure(
        sigma=sigma, data_range=float(data_range)
    )
    name = f"MS-SSIM (pr={number(data_range)}, k={_window(sigma)}, σ={number(sigma)})"
    return TorchMetric(metric, name, decimals=4, measures=RegressionOutput)


def _torchmetrics(part: str, kind: str) -> Any:
    return load_extra(f"torchmetrics.{part}", "metrics", f"metric {kind!r}")


def _window(sigma: float) -> int:
    """How wide torchmetrics makes the window for *sigma*."""
    return int(3.5 * sigma + 0.5) * 2 + 1
