"""Names, units and digits of the metrics, which are those of Burn."""

import pytest

from stages.contracts.config import Use
from stages.contracts.history import Direction
from stages.metrics import (
    AucPrMetric,
    AurocMetric,
    FBetaScoreMetric,
    MetricAdapter,
    PrecisionMetric,
    RecallMetric,
    build_metric,
)
from stages.metrics.registry import BUILT_IN, TELEMETRY

LOWEST, HIGHEST = Direction

SHOWN = [
    ({"kind": "accuracy", "pad_token": 0}, "Accuracy", "%", 2, HIGHEST),
    ({"kind": "auc_pr"}, "AUC-PR [Macro]", "%", 2, HIGHEST),
    ({"kind": "auroc", "reduction": "micro"}, "AUROC [Micro]", "%", 2, HIGHEST),
    ({"kind": "bleu", "n_gram": 2}, "BLEU-2", "%", 2, HIGHEST),
    ({"kind": "bleu"}, "BLEU-4", "%", 2, HIGHEST),
    ({"kind": "cer"}, "CER", "%", 2, LOWEST),
    ({"kind": "cpu_memory"}, "CPU Memory", "GB", 2, None),
    ({"kind": "cpu_temperature"}, "CPU Temperature", "°C", 2, None),
    ({"kind": "cpu_use"}, "CPU Usage", "%", 2, None),
    ({"kind": "cuda"}, "Cuda", "GB", 2, None),
    ({"kind": "data_wait"}, "Data Wait", "%", 2, LOWEST),
    ({"kind": "dice", "num_classes": 3}, "2D Dice Metric", None, 4, HIGHEST),
    ({"kind": "f_beta", "beta": 2}, "FBetaScore (2) [Macro]", "%", 2, HIGHEST),
    ({"kind": "f_beta", "beta": 0.5, "top_k": 3}, "FBetaScore (0.5) @ TopK(3) [Macro]", "%", 2, HIGHEST),
    ({"kind": "hamming"}, "Hamming Score @ Threshold(0.5)", "%", 2, HIGHEST),
    ({"kind": "hamming", "threshold": 1}, "Hamming Score @ Threshold(1)", "%", 2, HIGHEST),
    ({"kind": "iteration_speed"}, "Iteration Speed", "iter/sec", 2, HIGHEST),
    ({"kind": "learning_rate"}, "Learning Rate", None, 2, None),
    ({"kind": "loss"}, "Loss", None, 2, LOWEST),
    ({"kind": "map"}, "mAP", "%", 2, HIGHEST),
    ({"kind": "matthews"}, "MatthewsCorrelationCoefficient @ Multiclass", None, 4, HIGHEST),
    ({"kind": "mae"}, "MAE", None, 4, LOWEST),
    ({"kind": "mean_iou", "num_classes": 3}, "Mean IoU", None, 4, HIGHEST),
    ({"kind": "ms_ssim"}, "MS-SSIM (pr=1, k=11, σ=1.5)", None, 4, HIGHEST),
    ({"kind": "mse"}, "MSE", None, 4, LOWEST),
    ({"kind": "peak_memory"}, "Peak Memory", "GB", 2, LOWEST),
    ({"kind": "perplexity"}, "Perplexity", None, 2, LOWEST),
    ({"kind": "f_beta", "threshold": 0.5}, "FBetaScore (1) @ Threshold(0.5) [Macro]", "%", 2, HIGHEST),
    ({"kind": "precision"}, "Precision [Macro]", "%", 2, HIGHEST),
    ({"kind": "precision", "top_k": 1, "reduction": "micro"}, "Precision @ TopK(1) [Micro]", "%", 2, HIGHEST),
    ({"kind": "psnr", "max_pixel": 255}, "PSNR@255", "dB", 2, HIGHEST),
    ({"kind": "recall", "threshold": 0.25}, "Recall @ Threshold(0.25) [Macro]", "%", 2, HIGHEST),
    ({"kind": "rouge_l"}, "ROUGE-L", "%", 2, HIGHEST),
    ({"kind": "scalar", "field": "loss_box"}, "loss_box", None, 4, None),
    ({"kind": "ssim"}, "SSIM (dr=1, w=11, σ=1.5)", None, 4, HIGHEST),
    ({"kind": "top_k", "k": 5}, "Top-K Accuracy @ TopK(5)", "%", 2, HIGHEST),
    ({"kind": "utilization"}, "Utilization", "%", 2, None),
    ({"kind": "wer"}, "WER", "%", 2, LOWEST),
]


@pytest.mark.parametrize(("params", "name", "unit", "decimals", "better"), SHOWN)
def test_name_unit_and_digits_of_burns_metrics_equal_burn(params, name, unit, decimals, better):
    metric = build_metric(Use.model_validate(params))

    assert metric.name == name
    assert metric.unit == unit
    assert getattr(metric, "decimals", 2) == decimals
    assert getattr(metric, "better", None) == better
    assert getattr(metric, "telemetry", False) == (params["kind"] in TELEMETRY)


def test_table_covers_every_built_in_metric():
    assert {params["kind"] for params, *_ in SHOWN} == set(BUILT_IN)


@pytest.mark.parametrize(
    ("build", "arguments", "name"),
    [
        (PrecisionMetric.binary, (0.25,), "Precision @ Threshold(0.25) [Macro]"),
        (PrecisionMetric.multiclass, (2, "micro"), "Precision @ TopK(2) [Micro]"),
        (RecallMetric.multilabel, (0.5, "micro"), "Recall @ Threshold(0.5) [Micro]"),
        (PrecisionMetric.binary, (), "Precision @ Threshold(0.5) [Macro]"),
        (PrecisionMetric.multiclass, (), "Precision @ TopK(1) [Macro]"),
        (RecallMetric.multilabel, (), "Recall @ Threshold(0.5) [Macro]"),
        (FBetaScoreMetric.binary, (), "FBetaScore (1) @ Threshold(0.5) [Macro]"),
        (FBetaScoreMetric.multiclass, (), "FBetaScore (1) @ TopK(1) [Macro]"),
        (FBetaScoreMetric.multilabel, (), "FBetaScore (1) @ Threshold(0.5) [Macro]"),
        (FBetaScoreMetric.binary, (2.0, 0.5), "FBetaScore (2) @ Threshold(0.5) [Macro]"),
        (FBetaScoreMetric.multiclass, (0.5, 1, "micro"), "FBetaScore (0.5) @ TopK(1) [Micro]"),
        (FBetaScoreMetric.multilabel, (1.0, 0.5, "micro"), "FBetaScore (1) @ Threshold(0.5) [Micro]"),
        (AurocMetric.binary, (), "AUROC [Macro]"),
        (AurocMetric.multiclass, ("micro",), "AUROC [Micro]"),
        (AucPrMetric.multilabel, ("micro",), "AUC-PR [Micro]"),
        (MetricAdapter, (AurocMetric(), list), "AUROC [Macro]"),
    ],
)
def test_burn_constructors_exist(build, arguments, name):
    assert build(*arguments).name == name
