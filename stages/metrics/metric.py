"""The contract of a metric: one method that measures the output of a step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from stages.contracts.burn import Version
from stages.contracts.history import Direction
from stages.contracts.plugins import OptionalAttributes
from stages.metrics.state import MetricState


class Named(Protocol):
    """The attribute that every metric needs. It may also have those of `MetricOptions`."""

    @property
    def name(self) -> str:
        """The name in logs, curves and the summary; spaces become ``_`` in file names."""


class Metric(Named, Protocol):
    """A number that is measured on every batch and added up over an epoch.

    Your own metric needs a ``name`` and this method, and no base class.
    """

    def measure(self, output: Any) -> MetricState:
        """Return the measurement of *output*, the item that a step returned."""


class Collector(Protocol):
    """Batches that a metric measures in one pass; a `Metric` may have a method ``build_collector``."""

    def add(self, output: Any) -> MetricState | None:
        """Copy what is needed of *output* and return None, or return its measurement."""

    def measure(self) -> Sequence[MetricState]:
        """Return the measurement of each output that was copied since the last call."""


@runtime_checkable
class BurnMetric(Protocol):
    """A metric whose value depends on the version of Burn that a run follows."""

    burn: Version | None


class StepMetric(Named, Protocol):
    """A metric of the run itself, such as the learning rate."""

    def measure_step(self, step: Any) -> MetricState:
        """Return the measurement of *step*, a `stages.contracts.events.Step`."""


class PassMetric(Named, Protocol):
    """A metric of the time or the machine over one pass, such as the peak memory.

    It has a value for the pass and none for its batches, so it costs nothing per batch. It may also have:

    * ``watch(batches)``: called after `begin`; returns an iterator over the same batches, which the pass
      iterates over instead.
    """

    def begin(self) -> None:
        """Start to measure a pass, before its loader is opened."""

    def read(self) -> MetricState:
        """Return the measurement of the pass so far."""


@dataclass(frozen=True)
class MetricOptions(OptionalAttributes):
    """The optional attributes of a metric, and their defaults."""

    measures: type | tuple[type, ...] = object
    """The type of output that it takes, or several; the learner reports an output of another type."""
    better: Direction | None = None
    """Whether the highest or the lowest value is the best."""
    unit: str | None = None
    """The unit that is shown after the value."""
    decimals: int = 2
    """The number of digits that are shown."""
    description: str | None = None
    """A sentence about the metric, for loggers that store one."""
    train_only: bool = False
    """True if it is measured in training only, even if it is registered for both splits."""
    telemetry: bool = False
    """True if it depends on the clock or the machine; it is kept out of the history and of tracked files."""
    reads_output: bool = True
    """False if it reads no tensor of the output, so that a captured step does not copy it."""
    is_equal_on_ranks: bool = False
    """True if the value is that of rank 0, because it does not depend on the samples."""


@dataclass(frozen=True)
class MetricMethods(OptionalAttributes):
    """The methods by which a metric measures, of which each kind has its own."""

    measure: Callable[[Any], MetricState] | None = None
    measure_step: Callable[[Any], MetricState] | None = None
    build_collector: Callable[[], Collector | None] | None = None
    begin: Callable[[], None] | None = None
    read: Callable[[], MetricState] | None = None
    watch: Callable[[Iterable[Any]], Iterable[Any]] | None = None

    @property
    def covers_pass(self) -> bool:
        """True if the metric measures a pass as a whole, and not its batches."""
        return not (self.measure or self.measure_step)


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
        vars(self).update(vars(MetricOptions.of(metric)), measures=measures)
        self._metric = metric
        self._adapt = adapt

    def measure(self, output: Any) -> MetricState:
        """Return the metric's measurement of the converted *output*."""
        return self._metric.measure(self._adapt(output))
