"""What is measured on one split of one epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger
from stages.metrics import Mean, Metric


@dataclass(frozen=True)
class Registered:
    """A metric and whether it is followed as a number: plotted, and in the summary."""

    metric: Metric
    numeric: bool


class Meter:
    """Measures each batch, logs it, and adds it up."""

    def __init__(self, metrics: Sequence[Registered], loggers: Sequence[MetricLogger], epoch: int) -> None:
        self._metrics = metrics
        self._loggers = loggers
        self._epoch = epoch
        self._sums = {each.metric.name: Mean(0.0, 0) for each in metrics}
        self._checked = False

    def measure(self, item: Any) -> None:
        """Take in one batch. Raises `BuilderError` on the first that a metric cannot measure."""
        if not self._checked:
            self._check(item)
        for each in self._metrics:
            name, measured = each.metric.name, each.metric.measure(item)
            self._sums[name] = self._sums[name] + measured
            for logger in self._loggers:
                logger.log(self._epoch, name, measured.value, measured.count)

    def _check(self, item: Any) -> None:
        for each in self._metrics:
            measures = getattr(each.metric, "measures", object)
            if not isinstance(item, measures):
                raise BuilderError(
                    f"metric {each.metric.name!r} measures a {measures.__name__}, "
                    f"and the model's step gives a {type(item).__name__}: register another metric"
                )
        self._checked = True

    def values(self) -> dict[str, float]:
        """Every metric over the batches so far."""
        return {name: mean.value for name, mean in self._sums.items()}

    def numeric(self) -> dict[str, float]:
        """The same, of the numeric ones."""
        values = self.values()
        return {each.metric.name: values[each.metric.name] for each in self._metrics if each.numeric}
