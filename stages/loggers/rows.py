"""A row a batch, of all metrics and epochs in one file."""

from collections.abc import Callable
from pathlib import Path

from stages.contracts.errors import BuilderError
from stages.contracts.files import write_text
from stages.loggers.lines import LineFile


class Iterations:
    """Counts the batches of an epoch, from 1, for each metric by itself."""

    def __init__(self) -> None:
        self._epoch = 0
        self._counts: dict[str, int] = {}

    def next(self, epoch: int, name: str) -> int:
        """The number of the batch that *name* is now logged for."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._counts.clear()
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return count


class RowFile:
    """A file of rows that a resumed run goes on with.

    The first row decides: rows of earlier epochs stay, those of its epoch and of later ones go. So the
    file of a broken and resumed run is that of an unbroken one.
    """

    def __init__(
        self, path: Path, epoch_of: Callable[[str], int], *, header: str = "", flush_seconds: float
    ) -> None:
        self.path = path
        self._epoch_of = epoch_of
        self._header = header
        self._flush_seconds = flush_seconds
        self._epoch = 0
        self._file: LineFile | None = None

    def write(self, epoch: int, row: str) -> None:
        """Add *row*, which ends in a line break.

        Raises `BuilderError` where there is a file already that holds something else.
        """
        file = self._file
        if file is None or epoch < self._epoch:
            file = self._begun(epoch)
        self._epoch = epoch
        file.write(row)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self._file:
            self._file.flush()

    def close(self) -> None:
        """Flush and close. What is logged after that drops the rows from its epoch on."""
        if self._file:
            self._file.close()
            self._file = None

    def _begun(self, epoch: int) -> LineFile:
        self.close()
        write_text(self.path, self._header + "".join(self._rows_before(epoch)))
        self._file = LineFile(self.path, "a", self._flush_seconds)
        return self._file

    def _rows_before(self, epoch: int) -> list[str]:
        if not self.path.exists():
            return []
        *rows, _ = self.path.read_text(encoding="utf-8").split(
            "\n"
        )  # after the last break: half a row, or none
        header = self._header.splitlines()
        if rows and rows[: len(header)] == header:
            try:
                return [f"{row}\n" for row in rows[len(header) :] if self._epoch_of(row) < epoch]
            except (ValueError, KeyError, TypeError):
                pass
        elif not rows:
            return []
        raise BuilderError(f"{self.path} is there and holds something else: name another file, or remove it")
