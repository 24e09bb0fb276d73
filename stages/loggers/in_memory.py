"""What was logged, kept in memory: for tests and notebooks."""

from dataclasses import dataclass

from stages.loggers.rows import Iterations


@dataclass(frozen=True, slots=True)
class Row:
    """One call of a logger."""

    epoch: int
    iteration: int | None
    """The batch of this epoch, from 1; None for the value of a whole epoch."""
    name: str
    value: float
    count: int | None
    """Samples in the batch; None for the value of a whole epoch."""


class InMemoryMetricLogger:
    """Keeps every row in *rows*, in the order of the calls. Burn's of the same name."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._iterations = Iterations()

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Keep a row for one batch of *count* samples."""
        self.rows.append(Row(epoch, self._iterations.next(epoch, name), name, value, count))

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Keep a row for a whole epoch."""
        self.rows.append(Row(epoch, None, name, value, None))

    def values(self, epoch: int, name: str) -> list[float]:
        """What *name* was on each batch of *epoch*; empty where nothing was logged."""
        return [r.value for r in self.rows if r.epoch == epoch and r.name == name and r.iteration]

    def flush(self) -> None:
        """Nothing is on its way anywhere."""

    def close(self) -> None:
        """The rows stay."""
