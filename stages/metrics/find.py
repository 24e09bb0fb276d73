"""From a name in params to a metric."""

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import PluginError
from stages.metrics.config import BUILT_IN
from stages.metrics.mean import Metric


def build_metric(use: Use) -> Metric:
    """The metric that *use* names. Raises `PluginError` for a name that leads nowhere or to no metric."""
    maker = plugins.find("metric", use.kind, BUILT_IN)
    metric: Metric = plugins.build("metric", use.kind, maker, arguments_of(use))
    missing = [name for name in ("name", "unit", "measure") if not hasattr(metric, name)]
    if missing:
        raise PluginError(
            f"metric {use.kind!r} is a {type(metric).__name__} with no {', no '.join(missing)}; "
            "a metric has a name, a unit (or None) and measure(output) -> Mean"
        )
    return metric
