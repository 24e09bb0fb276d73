"""The metrics, the loggers and the renderer of a run."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from stages.contracts.burn import Version
from stages.contracts.events import MetricLogger, Progress, Renderer, Resumable, Shown, Verifiable
from stages.contracts.history import Split
from stages.distributed import RankGroup
from stages.learner.metering import Meter
from stages.learner.registered_metric import MeteredMetric, RegisteredMetric, log_definitions
from stages.optim import Guard


@dataclass(frozen=True)
class Observers:
    """The metrics, loggers and renderer of a run. They change nothing in it."""

    metrics: Mapping[Split, Sequence[RegisteredMetric]]
    loggers: Mapping[Split, Sequence[MetricLogger]]
    telemetry: Mapping[Split, Sequence[MetricLogger]]
    """The loggers of metrics that depend on the clock or the machine."""
    additional: Mapping[Split, Sequence[MetricLogger]]
    """Loggers of all metrics."""
    renderer: Renderer
    group: RankGroup
    """The ranks whose values are added."""
    burn: Version | None
    """The version of Burn whose lines the logs have."""

    def meter(self, split: Split, epoch: int, guard: Guard | None = None) -> Meter:
        """Return the meter of *split* in *epoch*, which reads the flag of *guard* with the values."""
        metrics = self._list_metered(split)
        loggers = [*self.loggers[split], *self.additional[split]]
        return Meter(
            metrics, self.renderer, split, epoch, guard, self.group, burn=self.burn, log_loggers=loggers
        )

    def _list_metered(self, split: Split) -> list[MeteredMetric]:
        return [
            (
                metric,
                [*(self.telemetry if metric.telemetry else self.loggers)[split], *self.additional[split]],
            )
            for metric in self.metrics[split]
        ]

    def start(self, progress: Progress) -> None:
        """Start the renderer, and pass the definitions of the metrics to the loggers."""
        self.renderer.start(progress)
        for split in Split:
            log_definitions(self._list_metered(split))

    def display_options(self) -> dict[str, Shown]:
        """Return the display settings of each metric; text metrics first."""
        registered = [metric for metrics in self.metrics.values() for metric in metrics]
        return {metric.name: metric.shown for metric in sorted(registered, key=lambda metric: metric.numeric)}

    def flush(self) -> None:
        """Flush every logger."""
        for logger in self._loggers().values():
            logger.flush()

    def log_positions(self) -> dict[str, Any]:
        """Return the position of each log; everything before it is on disk."""
        return {
            name: logger.position()
            for name, logger in self._loggers().items()
            if isinstance(logger, Resumable)
        }

    def verify_logs(self, positions: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` if the logs do not have the content they had at *positions*."""
        for name, logger in self._loggers().items():
            if isinstance(logger, Verifiable) and name in positions:
                logger.verify(positions[name])

    def resume_logs(self, epoch: int, positions: Mapping[str, Any]) -> None:
        """Resume the logs within *epoch*; remove what was logged after *positions*."""
        for name, logger in self._loggers().items():
            if isinstance(logger, Resumable) and name in positions:
                logger.resume(epoch, positions[name])

    def remove_logs_after(self, epoch: int) -> None:
        """Remove what was logged after *epoch*."""
        for logger in self._loggers().values():
            if isinstance(logger, Resumable):
                logger.cut(epoch)

    def close(self) -> None:
        """Close the renderer, which restores the terminal, and then every logger."""
        with ExitStack() as stack:  # each is closed, whatever the others raise
            for logger in self._loggers().values():
                stack.callback(logger.close)
            stack.callback(self.renderer.close)

    def _loggers(self) -> dict[str, MetricLogger]:
        """Return every logger by the name of its position in a checkpoint.

        The name of an additional logger contains its class, so that a run can resume with other ones.
        """
        named = {
            f"{kind}{split}-{number}": logger
            for kind, loggers in {"": self.loggers, "telemetry-": self.telemetry}.items()
            for split in Split
            for number, logger in enumerate(loggers[split])
        }
        for split in Split:
            for logger in self.additional[split]:
                name = f"{type(logger).__qualname__}-{split}"
                named[f"{name}-{sum(taken.startswith(f'{name}-') for taken in named)}"] = logger
        return named
