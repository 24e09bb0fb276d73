"""All batches as one table of tab-separated values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.contracts.text import number
from stages.loggers.cutting import part_of
from stages.loggers.names import file_name
from stages.loggers.rows import Iterations, RowFile

_HEADER = "epoch\titeration\tname\tvalue\tcount\n"


class TsvMetricLogger:
    """Logs one split to *path*, with the columns epoch, iteration, name, value, count.

    The value of a whole epoch has no iteration, and the count ``final``. A resumed run goes on with the
    file of the one before.
    """

    def __init__(self, path: Path | str, flush_seconds: float = 1.0) -> None:
        self._rows = RowFile(Path(path), _epoch, header=_HEADER, flush_seconds=flush_seconds)
        self._iterations = Iterations()

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Add a row for one batch of *count* samples.

        Raises `BuilderError` for a *name* that no table could hold.
        """
        iteration = self._iterations.next(epoch, name)
        if iteration == 1:
            file_name(name, "tsv")
        self._rows.write(epoch, f"{epoch}\t{iteration}\t{name}\t{number(value)}\t{count}\n")

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a row for a whole epoch."""
        self._rows.write(epoch, f"{epoch}\t\t{name}\t{number(value)}\tfinal\n")

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._rows.flush()

    def close(self) -> None:
        """Flush and close."""
        self._rows.close()
        self._iterations = Iterations()

    def position(self) -> dict[str, Any]:
        """The file's size and the number of each metric's batch; everything so far is on disk."""
        return {"files": self._rows.position(), "iterations": self._iterations.position()}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Go on in the middle of *epoch*, where everything was as *position* says; all later rows go.

        Raises `CheckpointError` where the file is missing or shorter than it was.
        """
        iterations = part_of(position, "iterations", dict)
        self._rows.resume(epoch, position)
        self._iterations.resume(iterations)

    def cut(self, epoch: int) -> None:
        """The rows after *epoch* go, whatever an earlier run left there."""
        self._rows.cut(epoch)
        self._iterations = Iterations()


def _epoch(row: str) -> int:
    return int(row.partition("\t")[0])
