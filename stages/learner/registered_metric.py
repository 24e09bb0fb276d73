"""Metrics as they are registered: what the meters of a run ask of any metric."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stages.contracts.errors import BuilderError
from stages.contracts.events import DefinitionLogger, MetricDefinition, MetricLogger, Shown
from stages.contracts.plugins import check_object
from stages.contracts.user_code import place_of
from stages.metrics import Metric, MetricMethods, MetricOptions, PassMetric, StepMetric
from stages.metrics.registry import BUILT_IN


@dataclass(frozen=True)
class RegisteredMetric:
    """A metric, and whether it is numeric: then it has a curve and a row in the summary."""

    metric: Metric | StepMetric | PassMetric
    numeric: bool

    def __post_init__(self) -> None:
        metric: Any = self.metric
        name = metric if isinstance(metric, str) and metric in BUILT_IN else "accuracy"
        check_object(metric, "metric", f"{BUILT_IN[name].partition(':')[2]}()", "name")
        if self.covers_pass and not (self.methods.begin and self.methods.read):
            kind = type(metric)
            raise BuilderError(
                f"metric {self.name!r}: {kind.__name__}{place_of(kind)} has no method measure. Define "
                "measure(output), which returns a Mean, or a frozen dataclass that adds and has value, count"
            )

    @property
    def name(self) -> str:
        """The name of the metric."""
        return self.metric.name

    @cached_property
    def options(self) -> MetricOptions:
        """The optional attributes of the metric."""
        return MetricOptions.of(self.metric)

    @property
    def telemetry(self) -> bool:
        """True if the metric depends on the clock or the machine; it is then excluded from tracked files."""
        return self.options.telemetry

    @cached_property
    def methods(self) -> MetricMethods:
        """The methods of the metric."""
        return MetricMethods.of(self.metric)

    @property
    def covers_pass(self) -> bool:
        """True for a `PassMetric`, which is read instead of measured on each batch."""
        return self.methods.covers_pass

    @property
    def reads_output(self) -> bool:
        """True if the metric reads tensors of the output of a step."""
        return not self.covers_pass and self.options.reads_output

    @property
    def is_equal_on_ranks(self) -> bool:
        """True if the value is that of rank 0: it does not depend on the samples."""
        return self.telemetry or self.options.is_equal_on_ranks

    @property
    def measures(self) -> str:
        """The names of the output types that the metric accepts."""
        kinds = self.options.measures
        return " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else [kinds]))

    def check_output(self, item: Any) -> None:
        """Raise `BuilderError` if the metric does not measure *item*, which a step returned."""
        if not isinstance(item, self.options.measures):
            raise BuilderError(
                f"metric {self.name!r} measures {self.measures}, but the model's step returned "
                f"{type(item).__name__}: register another metric"
            )

    @property
    def shown(self) -> Shown:
        """The display settings of the metric."""
        return Shown(self.options.unit, self.options.decimals, self.numeric)


MeteredMetric = tuple[RegisteredMetric, Sequence[MetricLogger]]
"""A metric with its loggers."""


def log_definitions(metrics: Iterable[MeteredMetric]) -> None:
    """Pass the definition of each of *metrics* to its loggers that take one."""
    for metric, loggers in metrics:
        options = metric.options
        definition = MetricDefinition(metric.name, options.unit, options.description, options.better)
        for logger in loggers:
            if isinstance(logger, DefinitionLogger):
                logger.log_metric_definition(definition)
