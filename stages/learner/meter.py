"""What is measured on one split of one epoch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.contracts.errors import BuilderError
from stages.contracts.events import MetricLogger, Renderer, Shown, Step
from stages.contracts.history import Split
from stages.metrics import Mean, Metric, MetricState, StepMetric
from stages.metrics.state import load_state, save_state

PENDING = 64
"""Batches that are measured before their values are asked for: on an accelerator each asking waits."""


@dataclass(frozen=True)
class Registered:
    """A metric and whether it is followed as a number: plotted, and in the summary."""

    metric: Metric | StepMetric
    numeric: bool

    @property
    def telemetry(self) -> bool:
        """Whether it depends on the clock or the machine, and is kept out of every tracked file."""
        return bool(getattr(self.metric, "telemetry", False))

    @property
    def measured(self) -> str:
        """The names of the outputs that it takes."""
        measures = getattr(self.metric, "measures", object)
        return " or ".join(
            kind.__name__ for kind in (measures if isinstance(measures, tuple) else [measures])
        )

    @property
    def shown(self) -> Shown:
        """How it is shown."""
        return Shown(self.metric.unit, getattr(self.metric, "decimals", 2), self.numeric)


class Meter:
    """Measures each batch, adds it up, and hands the batches' values on, some at a time."""

    def __init__(
        self,
        metrics: Sequence[tuple[Registered, Sequence[MetricLogger]]],
        renderer: Renderer,
        split: Split,
        epoch: int,
    ) -> None:
        self._metrics = [each for each, _ in metrics]
        self._loggers = {each.metric.name: loggers for each, loggers in metrics}
        self._renderer = renderer
        self._split = split
        self._epoch = epoch
        self._measures: list[tuple[str, Callable[[Any], MetricState], bool]] = []
        self._pending: list[tuple[str, MetricState]] = []
        self._sums: dict[str, MetricState] = {}
        self._latest: dict[str, MetricState] = {}
        self._carried: dict[str, Any] = {}

    def measure(self, item: Any, iteration: int, learning_rate: float) -> None:
        """Take in one batch. Raises `BuilderError` on the first that a metric cannot measure."""
        if not self._measures:
            self._measures = [_measure_of(each, item) for each in self._metrics]
        sums, latest = self._sums, self._latest
        for name, measure, whole in self._measures:
            if whole:
                measured = measure(Step(item, self._split, self._epoch, iteration, learning_rate))
            else:
                measured = measure(item)
            sums[name] = sums[name] + measured if name in sums else measured
            latest[name] = measured
            self._pending.append((name, measured))
        if self._carried:
            self._add_carried()
        if len(self._pending) >= PENDING * len(self._measures):
            self.drain()

    def sums(self) -> dict[str, Any]:
        """Every metric so far, as a tree that a record holds; no value is left to be handed on.

        Raises `TypeError` for one that cannot be saved.
        """
        self.drain()
        return {name: save_state(total, name) for name, total in self._sums.items()}

    def carry(self, sums: Mapping[str, Any]) -> None:
        """Begin with *sums*, from `sums`: they count from the next batch on, which tells their types."""
        self._carried = dict(sums)

    def _add_carried(self) -> None:
        for name, tree in self._carried.items():
            if name in self._sums:
                self._sums[name] = load_state(tree, self._sums[name], name) + self._sums[name]
        self._carried = {}

    def drain(self) -> None:
        """Log and show the value of every batch since the last call, if the batch has one."""
        for name, measured in self._pending:
            if not _has_batch_value(measured):
                continue
            value = measured.value
            for logger in self._loggers[name]:
                logger.log(self._epoch, name, value, measured.count)
            self._renderer.log(self._split, self._epoch, name, value)
        self._pending.clear()

    def finish(self) -> dict[str, float]:
        """The epoch's values of the metrics that are followed as numbers and are no telemetry."""
        self.drain()
        values = self.running()
        for name, total in self._sums.items():
            if not isinstance(total, Mean):
                for logger in self._loggers[name]:
                    logger.log_final(self._epoch, name, values[name])
        followed = [each.metric.name for each in self._metrics if each.numeric and not each.telemetry]
        return {name: values[name] for name in followed if name in values}

    def running(self) -> dict[str, float]:
        """Every metric over the batches so far."""
        return {name: total.value for name, total in self._sums.items()}

    def latest(self) -> dict[str, float]:
        """Return the value of the last batch of every metric whose batches have one."""
        return {name: measured.value for name, measured in self._latest.items() if _has_batch_value(measured)}


def _has_batch_value(measured: MetricState) -> bool:
    return getattr(measured, "has_batch_value", True)


def _measure_of(each: Registered, item: Any) -> tuple[str, Callable[[Any], MetricState], bool]:
    """How *each* is measured: its name, the method, and whether that takes the whole step."""
    metric = each.metric
    measures = getattr(metric, "measures", object)
    if not isinstance(item, measures):
        names = " or ".join(
            kind.__name__ for kind in (measures if isinstance(measures, tuple) else [measures])
        )
        raise BuilderError(
            f"metric {metric.name!r} measures a {names}, "
            f"and the model's step gives a {type(item).__name__}: register another metric"
        )
    if hasattr(metric, "measure_step"):
        return metric.name, metric.measure_step, True
    return metric.name, metric.measure, False
