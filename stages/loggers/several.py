"""Several loggers as one."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from stages.contracts.errors import CheckpointError
from stages.contracts.events import MetricLogger, Resumable
from stages.loggers.cutting import part_of


class SeveralLoggers:
    """Tells each of *loggers* what it is told, in their order."""

    def __init__(self, loggers: Iterable[MetricLogger]) -> None:
        self.loggers = tuple(loggers)

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Note one batch of *count* samples in each."""
        for logger in self.loggers:
            logger.log(epoch, name, value, count)

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Note the value of a whole epoch in each."""
        for logger in self.loggers:
            logger.log_final(epoch, name, value)

    def flush(self) -> None:
        """Have each write what it has."""
        for logger in self.loggers:
            logger.flush()

    def close(self) -> None:
        """Close every one, also where another cannot be closed."""
        with ExitStack() as stack:
            for logger in reversed(self.loggers):
                stack.callback(logger.close)

    def position(self) -> dict[str, Any]:
        """How far each is; None for one that cannot say."""
        return {
            "loggers": [each.position() if isinstance(each, Resumable) else None for each in self.loggers]
        }

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Have each go on in the middle of *epoch*; one that could not say how far it was begins it anew.

        Raises `CheckpointError` where there were more or fewer of them, or one cannot go on.
        """
        positions = part_of(position, "loggers", list)
        if len(positions) != len(self.loggers):
            raise CheckpointError(
                f"the checkpoint is of {len(positions)} loggers together, and here are {len(self.loggers)}: "
                "give those that the run had"
            )
        for logger, each in zip(self.loggers, positions, strict=True):
            if isinstance(logger, Resumable):
                logger.cut(epoch - 1) if each is None else logger.resume(epoch, each)

    def cut(self, epoch: int) -> None:
        """Have each that can drop what is after *epoch*."""
        for logger in self.loggers:
            if isinstance(logger, Resumable):
                logger.cut(epoch)
