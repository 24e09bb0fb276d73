"""Loggers that write one row per batch: as tab-separated values, as JSON, or to memory."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.history import format_file_name
from stages.contracts.text import json_number, number
from stages.loggers.line_file import LineFile, read_entry, truncate_files
from stages.system.files import sync_directory, write_text

_quote = cache(partial(json.dumps, ensure_ascii=False))
_check_name = cache(format_file_name)


class RowLogger:
    """The common part of loggers of one split that write a file of rows, to which a resumed run can append.

    The first row written decides which rows of an earlier run remain: those of earlier epochs remain, those
    of its own epoch and of later ones are removed. The file of a resumed run is thus equal to that of an
    uninterrupted one.
    """

    header: ClassVar[str] = ""

    def __init__(self, path: Path | str, flush_seconds: float = 1.0) -> None:
        self.path = Path(path)
        self._flush_seconds = flush_seconds
        self._iteration = 0
        """The number of the batch whose values are logged."""
        self._epoch = 0
        self._file: LineFile | None = None
        self._resumable: int | None = None
        """The size in bytes of a file to append to that is not open yet."""

    def begin_batch(self, epoch: int, iteration: int) -> None:  # noqa: ARG002 - each value has the epoch
        """Add the next values as those of the batch *iteration*, from 1."""
        self._iteration = iteration

    def _parse_epoch(self, row: str) -> int:
        """Return the epoch in a *row* of this logger; any other row raises an exception."""
        raise NotImplementedError

    def _write(self, epoch: int, row: str) -> None:
        """Add *row*, which must end in a line break.

        Raises `BuilderError` if the path has a file that this logger did not write.
        """
        if epoch < self._epoch or (self._file is None and self._resumable is None):
            self._close_file()
            write_text(self.path, self.header + "".join(self._read_rows_before(epoch)))
        self._epoch = epoch
        if self._file is None:
            self._resumable = None
            self._file = LineFile(self.path, "a", self._flush_seconds)
        self._file.write(row)

    def flush(self) -> None:
        """Pass all rows to the operating system."""
        if self._file:
            self._file.flush()

    def close(self) -> None:
        """Flush and close. The next row after that removes the rows of its epoch and of later ones."""
        self._close_file()

    def position(self) -> dict[str, Any]:
        """Sync the file to disk and return its size, if there is one."""
        size = self._file.sync() if self._file else self._resumable
        return {"files": {} if size is None else {self.path.name: size}}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Resume in the middle of *epoch* at *position*, and remove all later rows.

        Raises `CheckpointError` if the file is missing, shorter than it was, or has another name.
        """
        sizes = read_entry(position, "files", dict)
        if sizes and set(sizes) != {self.path.name}:
            raise CheckpointError(
                f"the log of the checkpoint is {', '.join(map(repr, sizes))}, but this logger writes "
                f"{self.path.name!r}: use the name that it had"
            )
        if sizes:
            self._close_file()
            self._resumable = truncate_files(self.path.parent, position)[self.path.name]
            self._epoch = epoch
        else:
            self.cut(epoch - 1)

    def cut(self, epoch: int) -> None:
        """Remove the rows after *epoch*, whatever an earlier run wrote, and the file if no row remains.

        Raises `BuilderError` if the path has a file that this logger did not write.
        """
        self.close()
        self._epoch = epoch + 1
        rows = self._read_rows_before(self._epoch)
        if rows:
            write_text(self.path, self.header + "".join(rows))
            self._resumable = self.path.stat().st_size
        elif self.path.exists():
            self.path.unlink()
            sync_directory(self.path.parent)

    def _close_file(self) -> None:
        self._resumable = None
        if self._file:
            file, self._file = self._file, None
            file.close()

    def _read_rows_before(self, epoch: int) -> list[str]:
        if not self.path.exists():
            return []
        # the text after the last line break is empty, or a row that a kill cut short
        *rows, _ = self.path.read_text(encoding="utf-8").split("\n")
        if not rows:
            return []
        header = self.header.splitlines()
        with suppress(ValueError, KeyError, TypeError):
            if rows[: len(header)] == header:
                return [f"{row}\n" for row in rows[len(header) :] if self._parse_epoch(row) < epoch]
        raise BuilderError(
            f"{self.path} exists and was not written by this logger: choose another path, or remove the file"
        )


class TsvMetricLogger(RowLogger):
    """A logger of one split with the tab-separated columns epoch, iteration, name, value and count.

    The value of an epoch has no iteration, and its count is ``final``. A resumed run appends to the file.
    Rows are buffered for up to *flush_seconds*.
    """

    suffix = ".tsv"
    header = "epoch\titeration\tname\tvalue\tcount\n"

    def _parse_epoch(self, row: str) -> int:
        return int(row.partition("\t")[0])

    def log(self, epoch: int, name: str, value: float, count: float) -> None:
        """Add a row for one batch of *count* samples.

        Raises `BuilderError` for a *name* that a table cannot contain.
        """
        _check_name(name, "tsv")
        self._write(epoch, f"{epoch}\t{self._iteration}\t{name}\t{number(value)}\t{count}\n")

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a row with the *value* of *name* over the whole epoch."""
        self._write(epoch, f"{epoch}\t\t{name}\t{number(value)}\tfinal\n")


class JsonLinesMetricLogger(RowLogger):
    """A logger of one split with a JSON object per line: epoch, iteration, name, value and count.

    The value of an epoch has ``null`` as iteration and count; NaN and infinity are strings. A resumed run
    appends to the file. Lines are buffered for up to *flush_seconds*.
    """

    suffix = ".jsonl"

    def _parse_epoch(self, row: str) -> int:
        return int(json.loads(row)["epoch"])

    def log(self, epoch: int, name: str, value: float, count: float) -> None:
        """Add a line for one batch of *count* samples."""
        self._write_object(epoch, str(self._iteration), name, value, str(count))

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a line with the *value* of *name* over the whole epoch."""
        self._write_object(epoch, "null", name, value, "null")

    def _write_object(self, epoch: int, iteration: str, name: str, value: float, count: str) -> None:
        self._write(
            epoch,
            f'{{"epoch": {epoch}, "iteration": {iteration}, "name": {_quote(name)}, '
            f'"value": {json_number(value)}, "count": {count}}}\n',
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One call of a logger."""

    epoch: int
    iteration: int | None
    """The batch of this epoch, from 1; None for the value of an epoch."""
    name: str
    value: float
    count: float | None
    """The number of samples in the batch; None for the value of an epoch."""


class InMemoryMetricLogger:
    """A logger that keeps each row in the list *rows*, in the order of the calls, as Burn's of that name.

    It is meant for tests and notebooks.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._iteration = 0

    def begin_batch(self, epoch: int, iteration: int) -> None:  # noqa: ARG002 - each value has the epoch
        """Add the next values as those of the batch *iteration*, from 1."""
        self._iteration = iteration

    def log(self, epoch: int, name: str, value: float, count: float) -> None:
        """Add a row for one batch of *count* samples."""
        self.rows.append(Row(epoch, self._iteration, name, value, count))

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add a row with the *value* of *name* over the whole epoch."""
        self.rows.append(Row(epoch, None, name, value, None))

    def values(self, epoch: int, name: str) -> list[float]:
        """Return the value of *name* on each batch of *epoch*; empty if it was not logged."""
        return [r.value for r in self.rows if r.epoch == epoch and r.name == name and r.iteration]

    def flush(self) -> None:
        """Do nothing: rows are not buffered, and remain available."""

    close = flush

    def position(self) -> dict[str, Any]:
        """Return the number of rows."""
        return {"rows": len(self.rows)}

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:  # noqa: ARG002 - the position has one
        """Resume in the middle of an epoch at *position*, and remove all later rows.

        Fewer rows than in *position* are accepted, because a new process starts with none.
        """
        del self.rows[read_entry(position, "rows", int) :]

    def cut(self, epoch: int) -> None:
        """Remove the rows after *epoch*."""
        self.rows = [row for row in self.rows if row.epoch <= epoch]
