"""Metrics, as params say them."""

from typing import Annotated

from pydantic import AfterValidator

from stages.contracts.config import Use
from stages.contracts.plugins import known_as

BUILT_IN = {
    "accuracy": "stages.metrics.accuracy:AccuracyMetric",
    "auc_pr": "stages.metrics.areas:AucPrMetric",
    "auroc": "stages.metrics.areas:AurocMetric",
    "bleu": "stages.metrics.borrowed:bleu",
    "cer": "stages.metrics.error_rates:CharErrorRate",
    "cpu_memory": "stages.metrics.machine:CpuMemory",
    "cpu_temperature": "stages.metrics.machine:CpuTemperature",
    "cpu_use": "stages.metrics.machine:CpuUse",
    "cuda": "stages.metrics.cuda:CudaMetric",
    "dice": "stages.metrics.borrowed:dice",
    "f_beta": "stages.metrics.precision:FBetaScoreMetric",
    "hamming": "stages.metrics.hamming:HammingScore",
    "iteration_speed": "stages.metrics.iteration_speed:IterationSpeedMetric",
    "learning_rate": "stages.metrics.learning_rate:LearningRateMetric",
    "loss": "stages.metrics.loss:LossMetric",
    "mae": "stages.metrics.regression:MaeMetric",
    "ms_ssim": "stages.metrics.borrowed:ms_ssim",
    "mse": "stages.metrics.regression:MseMetric",
    "perplexity": "stages.metrics.perplexity:PerplexityMetric",
    "precision": "stages.metrics.precision:PrecisionMetric",
    "psnr": "stages.metrics.borrowed:psnr",
    "recall": "stages.metrics.precision:RecallMetric",
    "rouge_l": "stages.metrics.borrowed:rouge_l",
    "ssim": "stages.metrics.borrowed:ssim",
    "top_k": "stages.metrics.top_k:TopKAccuracyMetric",
    "wer": "stages.metrics.error_rates:WordErrorRate",
}

MetricConfig = Annotated[Use, AfterValidator(known_as("metric", BUILT_IN))]
