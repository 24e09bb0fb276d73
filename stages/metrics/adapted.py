"""Any metric, on outputs of a user's own type."""

from collections.abc import Callable
from typing import Any

from stages.metrics.metric import Metric, Summary


class Adapted:
    """*metric*, fed with what *adapt* makes of a step's output; the same in all else. Burn's ``Adaptor``::

    Adapted(AccuracyMetric(), lambda mine: ClassificationOutput(mine.loss, mine.scores, mine.labels))
    """

    def __init__(self, metric: Metric, adapt: Callable[[Any], Any], *, measures: type = object) -> None:
        self.name = metric.name
        self.unit = metric.unit
        self.better = getattr(metric, "better", None)
        self.decimals = getattr(metric, "decimals", 2)
        self.telemetry = getattr(metric, "telemetry", False)
        self.measures = measures
        """The type that *adapt* takes."""
        self._metric = metric
        self._adapt = adapt

    def measure(self, output: Any) -> Summary:
        """What the metric measures of the adapted *output*."""
        return self._metric.measure(self._adapt(output))
