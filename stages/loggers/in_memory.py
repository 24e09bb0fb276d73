"""What was logged, kept in memory: for tests and notebooks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stages.loggers.cutting import part_of
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

    def position(self) -> dict[str, Any]:
        """How many rows there are, and the number of each metric's batch."""
        return {"rows": len(self.rows), "iterations": self._iterations.position()}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:  # noqa: ARG002 - the rows have theirs
        """Go on in the middle of an epoch: all later rows go.

        Fewer rows than there were are no error: memory does not outlive its process.
        """
        iterations = part_of(position, "iterations", dict)
        del self.rows[part_of(position, "rows", int) :]
        self._iterations.resume(iterations)

    def cut(self, epoch: int) -> None:
        """The rows after *epoch* go."""
        self.rows = [row for row in self.rows if row.epoch <= epoch]
        self._iterations = Iterations()
