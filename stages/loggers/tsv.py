"""All batches as one table of tab-separated values."""

from pathlib import Path

from stages.contracts.text import number
from stages.loggers.names import file_name
from stages.loggers.rows import RowFile, RowLogger

_HEADER = "epoch\titeration\tname\tvalue\tcount\n"


class TsvMetricLogger(RowLogger):
    """Logs one split to *path*, with the columns epoch, iteration, name, value, count.

    The value of a whole epoch has no iteration, and the count ``final``. A resumed run goes on with the
    file of the one before.
    """

    suffix = ".tsv"

    def __init__(self, path: Path | str, flush_seconds: float = 1.0) -> None:
        super().__init__(RowFile(Path(path), _epoch, header=_HEADER, flush_seconds=flush_seconds))

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


def _epoch(row: str) -> int:
    return int(row.partition("\t")[0])
