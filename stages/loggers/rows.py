"""A row a batch, of all metrics and epochs in one file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.files import sync_directory, write_text
from stages.loggers.cutting import cut_back, part_of
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

    def position(self) -> dict[str, Any]:
        """How far the epoch is."""
        return {"epoch": self._epoch, "counts": dict(self._counts)}

    def resume(self, position: Mapping[str, Any]) -> None:
        """Go on from *position*."""
        self._epoch = part_of(position, "epoch", int)
        self._counts = dict(part_of(position, "counts", dict))


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
        self._continued: int | None = None
        """The size of a file to go on with that is not open yet."""

    def write(self, epoch: int, row: str) -> None:
        """Add *row*, which ends in a line break.

        Raises `BuilderError` where there is a file already that holds something else.
        """
        file = self._file
        if epoch < self._epoch or (file is None and self._continued is None):
            file = self._begun(epoch)
        elif file is None:
            file = self._opened()
        self._epoch = epoch
        file.write(row)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self._file:
            self._file.flush()

    def close(self) -> None:
        """Flush and close. What is logged after that drops the rows from its epoch on."""
        self._continued = None
        if self._file:
            file, self._file = self._file, None
            file.close()

    def position(self) -> dict[str, int]:
        """The file's name with its size, all of it on disk; nothing where no file has been begun."""
        size = self._file.sync() if self._file else self._continued
        return {} if size is None else {self.path.name: size}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Go on in the middle of *epoch*, where the file was as *position* says; all later rows go.

        Raises `CheckpointError` where the file is missing or shorter than it was.
        """
        named = part_of(position, "files", dict)
        if named and set(named) != {self.path.name}:
            raise CheckpointError(
                f"the checkpoint's log is {', '.join(map(repr, named))} and this logger's "
                f"{self.path.name!r}: give it the name it had"
            )
        if named:
            self.close()
            self._continued = cut_back(self.path.parent, position)[self.path.name]
            self._epoch = epoch
        else:
            self.cut(epoch - 1)

    def cut(self, epoch: int) -> None:
        """The rows after *epoch* go; a file with no other goes too.

        Raises `BuilderError` where there is a file that holds something else.
        """
        self.close()
        self._epoch = epoch + 1
        rows = self._rows_before(self._epoch)
        if rows:
            write_text(self.path, self._header + "".join(rows))
            self._continued = self.path.stat().st_size
        elif self.path.exists():
            self.path.unlink()
            sync_directory(self.path.parent)

    def _begun(self, epoch: int) -> LineFile:
        self.close()
        write_text(self.path, self._header + "".join(self._rows_before(epoch)))
        return self._opened()

    def _opened(self) -> LineFile:
        self._continued = None
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


class RowLogger:
    """Logs one split to a `RowFile`: what loggers of a row a batch share."""

    def __init__(self, rows: RowFile) -> None:
        self._rows = rows
        self._iterations = Iterations()

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
