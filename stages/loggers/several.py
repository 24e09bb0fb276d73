"""Several loggers as one."""

from collections.abc import Iterable
from contextlib import ExitStack

from stages.contracts.events import MetricLogger


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
