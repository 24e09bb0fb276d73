"""The names of metrics in params, and the function that builds a metric from its name."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from stages import metrics
from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import PluginError

if TYPE_CHECKING:
    from stages.metrics.metric import Metric

TELEMETRY = {
    "cpu_memory": "stages.metrics.telemetry:CpuMemory",
    "cpu_temperature": "stages.metrics.telemetry:CpuTemperature",
    "cpu_use": "stages.metrics.telemetry:CpuUse",
    "cuda": "stages.metrics.telemetry:CudaMetric",
    "data_wait": "stages.metrics.telemetry:DataWaitMetric",
    "iteration_speed": "stages.metrics.telemetry:IterationSpeedMetric",
    "peak_memory": "stages.metrics.telemetry:PeakMemoryMetric",
    "utilization": "stages.metrics.telemetry:UtilizationMetric",
}
"""The import path of each built-in metric of the clock or the machine by its name in params."""
BUILT_IN = TELEMETRY | {
    "accuracy": "stages.metrics.classification:AccuracyMetric",
    "auc_pr": "stages.metrics.areas:AucPrMetric",
    "auroc": "stages.metrics.areas:AurocMetric",
    "bleu": "stages.metrics.from_torchmetrics:bleu",
    "cer": "stages.metrics.text:CharErrorRate",
    "dice": "stages.metrics.from_torchmetrics:dice",
    "f_beta": "stages.metrics.precision_recall:FBetaScoreMetric",
    "hamming": "stages.metrics.classification:HammingScore",
    "learning_rate": "stages.metrics.telemetry:LearningRateMetric",
    "loss": "stages.metrics.regression:LossMetric",
    "mae": "stages.metrics.regression:MaeMetric",
    "map": "stages.metrics.detection:MeanAveragePrecisionMetric",
    "matthews": "stages.metrics.precision_recall:MatthewsCorrelationCoefficientMetric",
    "mean_iou": "stages.metrics.from_torchmetrics:mean_iou",
    "ms_ssim": "stages.metrics.from_torchmetrics:ms_ssim",
    "mse": "stages.metrics.regression:MseMetric",
    "perplexity": "stages.metrics.text:PerplexityMetric",
    "precision": "stages.metrics.precision_recall:PrecisionMetric",
    "psnr": "stages.metrics.from_torchmetrics:psnr",
    "recall": "stages.metrics.precision_recall:RecallMetric",
    "rouge_l": "stages.metrics.from_torchmetrics:rouge_l",
    "scalar": "stages.metrics.regression:ScalarMetric",
    "ssim": "stages.metrics.from_torchmetrics:ssim",
    "top_k": "stages.metrics.classification:TopKAccuracyMetric",
    "wer": "stages.metrics.text:WordErrorRate",
}
"""The import path of each built-in metric by its name in params."""

MetricConfig = Annotated[Use, AfterValidator(plugins.name_validator("metric", BUILT_IN))]


def _check_telemetry(use: Use) -> Use:
    """Raise `ValueError` for a built-in metric that measures the model: its values belong to the results."""
    if use.kind in BUILT_IN and use.kind not in TELEMETRY:
        raise ValueError(
            f"metric {use.kind!r} measures the model: add it to fit.metrics instead; telemetry is one of "
            f"{', '.join(TELEMETRY)}"
        )
    return use


TelemetryConfig = Annotated[MetricConfig, AfterValidator(_check_telemetry)]


def build_metric(use: Use) -> "Metric":
    """Return the metric that *use* names; a metric of torchmetrics is wrapped in a `TorchMetric`.

    Raises `PluginError` if the name leads to no metric, and for arguments that the metric does not take.
    """
    maker = plugins.find("metric", use.kind, BUILT_IN)
    arguments = arguments_of(use)
    try:
        metric = plugins.build("metric", use.kind, maker, arguments)
    except (TypeError, ValueError) as error:
        raise PluginError(f"metric {use.kind!r} cannot be built from {arguments}: {error}") from error
    return _check_metric(metrics.TorchMetric(metric) if _is_of_torchmetrics(metric) else metric, use.kind)


def build_telemetry(use: Use) -> "Metric":
    """Return the metric that *use* names.

    Raises `PluginError` as `build_metric` does, and for a metric that is not telemetry.
    """
    metric = build_metric(use)
    if not metrics.MetricOptions.of(metric).telemetry:
        raise PluginError(
            f"metric {use.kind!r} is in fit.telemetry, but {type(metric).__name__}.telemetry is not True: "
            "set it if the metric depends on the clock or the machine, or add the metric to fit.metrics"
        )
    return metric


def _check_metric(metric: Any, kind: str) -> "Metric":
    """Return *metric*. Raises `PluginError` if it lacks an attribute of a metric."""
    missing = [name for name in ("name", "unit") if not hasattr(metric, name)]
    methods = metrics.MetricMethods.of(metric)
    if methods.covers_pass and not (methods.begin and methods.read):
        missing.append("measure")
    if missing:
        raise PluginError(
            f"metric {kind!r} is a {type(metric).__name__} with no {', no '.join(missing)}: give it a name, "
            "a unit (or None) and measure(output) -> Mean, or measure_step(step) -> Mean"
        )
    checked: Metric = metric
    return checked


def _is_of_torchmetrics(metric: Any) -> bool:
    """Return whether *metric* is of torchmetrics, by name, so that torchmetrics is loaded only if needed."""
    kinds = {(kind.__module__, kind.__name__) for kind in type(metric).__mro__}
    return ("torchmetrics.metric", "Metric") in kinds
