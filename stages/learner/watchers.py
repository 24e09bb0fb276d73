"""Who is told what: metrics, their logs, and the renderer."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from stages.contracts.events import MetricLogger, Renderer, Resumable, Shown, Verifiable
from stages.contracts.history import Split
from stages.learner.meter import Meter, Registered


@dataclass
class Watchers:
    """What is measured, and who is told."""

    metrics: dict[Split, list[Registered]]
    loggers: dict[Split, list[MetricLogger]]
    telemetry: dict[Split, list[MetricLogger]]
    """Where metrics of the clock and the machine are logged."""
    renderer: Renderer

    def meter(self, split: Split, epoch: int) -> Meter:
        """Measures one epoch of *split*."""
        metrics = [
            (each, (self.telemetry if each.telemetry else self.loggers)[split])
            for each in self.metrics[split]
        ]
        return Meter(metrics, self.renderer, split, epoch)

    def shown(self) -> dict[str, Shown]:
        """How each metric is shown; text metrics first."""
        registered = [each for metrics in self.metrics.values() for each in metrics]
        return {each.metric.name: each.shown for each in sorted(registered, key=lambda each: each.numeric)}

    def flush(self) -> None:
        """Have every logger write what it has."""
        for logger in self._loggers().values():
            logger.flush()

    def position(self) -> dict[str, Any]:
        """How far each log has come, with everything before that on disk."""
        resumable = {name: each for name, each in self._loggers().items() if isinstance(each, Resumable)}
        return {name: logger.position() for name, logger in resumable.items()}

    def verify(self, positions: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` if the logs are not as they were at *positions*."""
        for name, logger in self._loggers().items():
            if isinstance(logger, Verifiable) and name in positions:
                logger.verify(positions[name])

    def resume(self, epoch: int, positions: Mapping[str, Any]) -> None:
        """Go on in the middle of *epoch*; what was logged after *positions* goes."""
        for name, logger in self._loggers().items():
            if isinstance(logger, Resumable) and name in positions:
                logger.resume(epoch, positions[name])

    def cut(self, epoch: int) -> None:
        """Whatever was logged after *epoch* goes."""
        for logger in self._loggers().values():
            if isinstance(logger, Resumable):
                logger.cut(epoch)

    def close(self) -> None:
        """Close everything, the renderer first so that the terminal is whole again."""
        with ExitStack() as stack:  # each is closed, whatever the others raise
            for logger in self._loggers().values():
                stack.callback(logger.close)
            stack.callback(self.renderer.close)

    def _loggers(self) -> dict[str, MetricLogger]:
        kinds = {"": self.loggers, "telemetry-": self.telemetry}
        return {
            f"{kind}{split}-{number}": logger
            for kind, loggers in kinds.items()
            for split in Split
            for number, logger in enumerate(loggers[split])
        }
