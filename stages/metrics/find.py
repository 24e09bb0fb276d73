"""From a name in params to a metric."""

from typing import Any

from stages import metrics
from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import PluginError
from stages.metrics.config import BUILT_IN
from stages.metrics.metric import Metric


def build_metric(use: Use) -> Metric:
    """The metric that *use* names; one of torchmetrics is made one of ours.

    Raises `PluginError` for a name that leads nowhere or to no metric, and for arguments it does not take.
    """
    maker = plugins.find("metric", use.kind, BUILT_IN)
    arguments = arguments_of(use)
    try:
        metric = plugins.build("metric", use.kind, maker, arguments)
    except (TypeError, ValueError) as error:
        raise PluginError(f"metric {use.kind!r} cannot be built from {arguments}: {error}") from error
    return _checked(metrics.TorchMetric(metric) if _is_of_torchmetrics(metric) else metric, use.kind)


def _checked(metric: Any, kind: str) -> Metric:
    missing = [name for name in ("name", "unit") if not hasattr(metric, name)]
    if not (hasattr(metric, "measure") or hasattr(metric, "measure_step")):
        missing.append("measure")
    if missing:
        raise PluginError(
            f"metric {kind!r} is a {type(metric).__name__} with no {', no '.join(missing)}; "
            "a metric has a name, a unit (or None) and measure(output) -> Mean, or measure_step(step) -> Mean"
        )
    checked: Metric = metric
    return checked


def _is_of_torchmetrics(metric: Any) -> bool:
    """Told by name, so that torchmetrics is loaded only where it is asked for."""
    kinds = {(kind.__module__, kind.__name__) for kind in type(metric).__mro__}
    return ("torchmetrics.metric", "Metric") in kinds
