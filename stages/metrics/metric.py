"""The contract of a metric: one method that measures the output of a step."""

from collections.abc import Callable
from typing import Any, Protocol

from stages.metrics.state import MetricState


class Metric(Protocol):
    """A number that is measured on every batch and added up over an epoch.

    Your own metric needs these attributes and no base class. It may also have:

    * ``measures``: the type of output that it takes, or a tuple of types; the learner reports an output of
      another type.
    * ``better``: a `Direction`: whether the highest or the lowest value is the best.
    * ``decimals``: the number of digits that are shown; default 2.
    * ``train_only``: True if it is measured in training only, even if it is registered for both splits.
    * ``telemetry``: True if it depends on the clock or the machine; such a metric is kept out of the
      history and of every tracked file.
    """

    @property
    def name(self) -> str:
        """The name in logs, curves and the summary; spaces become ``_`` in file names."""

    @property
    def unit(self) -> str | None:
        """The unit that is shown after the value; None for no unit."""

    def measure(self, output: Any) -> MetricState:
        """Return the measurement of *output*, the item that a step returned."""


class StepMetric(Protocol):
    """A metric of the run itself, such as the learning rate.

    May have the same optional attributes as a `Metric`, and also:

    * ``reads_output``: False if it reads no tensor of the output, so that a captured step does not copy it.
    """

    @property
    def name(self) -> str:
        """The name in logs, curves and the summary."""

    @property
    def unit(self) -> str | None:
        """The unit that is shown after the value; None for no unit."""

    def measure_step(self, step: Any) -> MetricState:
        """Return the measurement of *step*, a `stages.contracts.events.Step`."""


class PassMetric(Protocol):
    """A metric of the time or the machine over one pass, such as the peak memory.

    It has a value for the pass and none for its batches, so it costs nothing per batch. May have the same
    optional attributes as a `Metric`, and also:

    * ``watch(batches)``: called after `begin`; returns an iterator over the same batches, which the pass
      iterates over instead.
    """

    @property
    def name(self) -> str:
        """The name in logs, curves and the summary."""

    @property
    def unit(self) -> str | None:
        """The unit that is shown after the value; None for no unit."""

    def begin(self) -> None:
        """Start to measure a pass, before its loader is opened."""

    def read(self) -> MetricState:
        """Return the measurement of the pass so far."""


class MetricAdapter:
    """A metric on outputs of your own type. Burn's ``Adaptor``.

    Name, unit and the other attributes are those of *metric*.

        MetricAdapter(AccuracyMetric(), lambda out: ClassificationOutput(out.loss, out.scores, out.labels))

    Args:
        metric: the metric to measure.
        adapt: converts your output to one that *metric* takes.
        measures: the type that *adapt* takes, which the learner checks; default: any.
    """

    def __init__(self, metric: Metric, adapt: Callable[[Any], Any], *, measures: type = object) -> None:
        self.name = metric.name
        self.unit = metric.unit
        self.better = getattr(metric, "better", None)
        self.decimals = getattr(metric, "decimals", 2)
        self.telemetry = getattr(metric, "telemetry", False)
        self.measures = measures
        self._metric = metric
        self._adapt = adapt

    def measure(self, output: Any) -> MetricState:
        """Return the metric's measurement of the converted *output*."""
        return self._metric.measure(self._adapt(output))
