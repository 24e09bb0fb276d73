"""Burn's log files: ``<directory>/epoch-<n>/<Metric>.log``, with one line ``value,count`` per batch.

The format is that of Burn 0.13 to 0.21, with the line ``value,final`` of Burn 0.22 for a metric that is not
the mean of its batches; a run that follows a version of Burn has its lines. A file has the name of its
metric, with ``_`` instead of spaces.

Every format that Burn has written can be read. A line is ``value`` (Burn up to 0.12, and metrics of the
machine), ``value,count`` or ``value,final``. The value of an epoch is that of its final line, or else the
mean of its batches, weighted by their counts. ``N/A`` is not a value, and a file without values is ignored. A
``_`` in the name of a metric is read as a space. A text metric has no epoch value, and its file is ignored.
Burn up to 0.12 wrote the valid logs of epoch 2 and later one folder too deep; they are read from the folder
that they are in.
"""

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from stages.contracts.errors import BuilderError, DataError
from stages.contracts.history import History, Split, Value, format_file_name
from stages.contracts.step_log import LoggedSample
from stages.contracts.text import number
from stages.loggers.line_file import LineFile, build_removal_error, hash_files, truncate_files, verify_files
from stages.system.files import open_atomic, read_regular, sync_directory

FINAL = "final"
"""The count of the value of an epoch."""
SAMPLE_FILES = ("*-[1-9].png", "*-[1-9].txt")
"""Patterns of the files of samples in the folder of an epoch."""


def encode_sample(sample: LoggedSample) -> bytes:
    """Return the content of the file of *sample*: UTF-8, or an image in the format PNG."""
    if isinstance(sample.content, str):
        return sample.content.encode("utf-8", "backslashreplace")
    png: bytes = resolve_name("stages.data.sample_sheet:encode_png")(sample.content)  # no import of that part
    return png


def find_epoch_folders(directory: Path) -> dict[int, Path]:
    """Return the paths named ``epoch-<n>`` in *directory* by n; empty if the directory does not exist."""
    if not directory.is_dir():
        return {}
    matches = ((re.fullmatch(r"epoch-(\d+)", path.name), path) for path in directory.iterdir())
    return {int(match[1]): path for match, path in matches if match}


class FileMetricLogger:
    """A logger that writes the log files of one split.

    Each epoch starts with new files. The folders of later epochs, which an earlier run may have written, are
    removed at that time. Lines are buffered for up to *flush_seconds* and written by the first call after it.
    """

    def __init__(self, directory: Path | str, flush_seconds: float = 1.0) -> None:
        self.directory = Path(directory)
        self._flush_seconds = flush_seconds
        self._epoch = 0
        self._last: int | None = None
        """The last epoch that may have a folder; None if it has not been determined."""
        self._files: dict[str, LineFile] = {}
        self._resumable: dict[str, int] = {}
        """Size in bytes by name, of samples and of files that are not open yet after a resume."""
        self._unsynced: set[Path] = set()
        """Closed files, and folders of new files, that may not be on disk yet."""

    def log(self, epoch: int, name: str, value: float, count: float) -> None:
        """Add a line for one batch of *count* samples.

        Raises `BuilderError` for a *name* that cannot be a file name or shares its file with another metric.
        """
        self.log_batches(epoch, name, [(value, count)])

    def log_batches(self, epoch: int, name: str, values: Sequence[tuple[float, float]]) -> None:
        """Add a line for each batch of *values*, its value and its count, as `log` does."""
        lines = [f"{number(value)},{count}\n" for value, count in values]
        self._file(epoch, name).write("".join(lines))

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add the line ``value,final`` with the *value* of *name* over the whole epoch."""
        self._file(epoch, name).write(f"{number(value)},final\n")

    def log_bare(self, epoch: int, name: str, value: float) -> None:
        """Add the *value* of *name* over the whole epoch alone, as Burn 0.22 does if no batch has a value."""
        self._file(epoch, name).write(f"{number(value)}\n")

    def log_sample(self, epoch: int, sample: LoggedSample) -> None:
        """Write *sample* to ``epoch-<n>/<name>-<number>.png`` or ``.txt``."""
        self._enter(epoch)
        if not self._files:
            self._begin_epoch()
        is_text = isinstance(sample.content, str)
        name = format_file_name(f"{sample.name}-{sample.number}", "txt" if is_text else "png")
        path, content = self._folder() / name, encode_sample(sample)
        with open_atomic(path) as file:
            file.write(content)
        self._resumable[self._relative_name(path)] = len(content)
        self._unsynced |= {self.directory, self.directory.parent}

    def flush(self) -> None:
        """Pass all lines to the operating system. Raises `StageError` if a file was removed."""
        for file in self._files.values():
            file.flush()
            if file.is_removed():
                raise build_removal_error(file.path)

    def close(self) -> None:
        """Flush and close. A call of `log` after that starts new files."""
        self._resumable.clear()
        while self._files:
            file = self._files.popitem()[1]
            self._unsynced.add(file.path)
            file.close()

    def position(self) -> dict[str, Any]:
        """Sync the files of the current epoch and return the size and SHA-256 of each.

        Raises `StageError` if a file was removed.
        """
        sizes = {self._relative_name(file.path): file.sync() for file in self._files.values()}
        for path in sorted(self._unsynced):
            with suppress(FileNotFoundError):
                sync_directory(path)  # syncs a file as well: a read-only descriptor is enough for fsync
        self._unsynced.clear()
        sizes = self._resumable | sizes
        return {"files": sizes, "sha256": hash_files(self.directory, sizes)}

    def verify(self, position: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` if `resume` from *position* is impossible: a file is missing or changed."""
        verify_files(self.directory, position)

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Resume in the middle of *epoch* at *position*, and remove all later lines.

        Raises `CheckpointError` if a file is missing, changed, or shorter than it was.
        """
        self.close()
        self._resumable = truncate_files(self.directory, position)
        self._epoch = epoch
        for path in chain.from_iterable(map(self._folder().glob, ("*.log", *SAMPLE_FILES))):
            if self._relative_name(path) not in self._resumable:
                path.unlink()
        self._remove_epochs_after(epoch)
        self._last = epoch

    def cut(self, epoch: int) -> None:
        """Remove the folders of the epochs after *epoch*, whatever an earlier run wrote to them."""
        self.close()
        self._remove_epochs_after(epoch)
        self._last = epoch

    def _file(self, epoch: int, name: str) -> LineFile:
        self._enter(epoch)
        return self._files.get(name) or self._open(name)

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self.close()
            self._epoch = epoch

    def _open(self, name: str) -> LineFile:
        path = self._folder() / format_file_name(name, "log")
        for other in self._files:
            if format_file_name(other, "log") == path.name:
                raise BuilderError(f"metrics {other!r} and {name!r} would share {path}: rename one of them")
        if not self._files:
            self._begin_epoch()
        mode: Literal["a", "w"] = "w" if self._resumable.pop(self._relative_name(path), None) is None else "a"
        self._files[name] = LineFile(path, mode, self._flush_seconds)
        self._unsynced |= {path.parent, self.directory, self.directory.parent}
        return self._files[name]

    def _begin_epoch(self) -> None:
        """Forget the files of previous epochs and remove the folders of later ones."""
        prefix = self._relative_name(self._folder() / "x")[:-1]
        self._resumable = {name: size for name, size in self._resumable.items() if name.startswith(prefix)}
        if self._last is None or self._epoch < self._last:  # listing many folders is slow
            self._remove_epochs_after(self._epoch)
        self._last = self._epoch

    def _relative_name(self, path: Path) -> str:
        return path.relative_to(self.directory).as_posix()

    def _folder(self) -> Path:
        return self.directory / f"epoch-{self._epoch}"

    def _remove_epochs_after(self, last: int) -> None:
        for epoch, folder in find_epoch_folders(self.directory).items():
            if epoch > last and folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)


class TestMetricLogger(FileMetricLogger):
    """A logger of one test set, which has no epochs: ``<directory>/<Metric>.log``, as in Burn's evaluator."""

    __test__ = False  # pytest must not collect this class

    def _folder(self) -> Path:
        return self.directory

    def _remove_epochs_after(self, last: int) -> None:
        """Do nothing: a folder ``epoch-<n>`` was not written by this logger."""


def read_history(directory: Path | str) -> History:
    """Return the epoch values of the logs in ``<directory>/train`` and ``<directory>/valid``.

    The history is empty if there are no logs. ``<directory>/telemetry`` can be read in the same way. Raises
    `DataError` for a line in an unsupported format.
    """
    history = History()
    for split in Split:
        for epoch, folder in sorted(find_epoch_folders(Path(directory) / split).items()):
            for metric, value in _read_values(folder).items():
                history.add(Value(epoch, split, metric, value))
    return history


def read_epoch(directory: Path | str, split: Split, epoch: int) -> dict[str, float]:
    """Return metric to value of one *epoch* of *split*, from the logs in *directory*; empty without any.

    Raises `DataError` as `read_history` does.
    """
    return _read_values(Path(directory) / split / f"epoch-{epoch}")


def read_tests(directory: Path | str) -> dict[str, dict[str, float]]:
    """Return tag to metric to value of the evaluations in ``<directory>/test/<tag>``, sorted by tag.

    The tag of an evaluation without one is the empty string. Raises `DataError` as `read_history` does.
    """
    root = Path(directory) / "test"
    if not root.is_dir():
        return {}
    epochs = find_epoch_folders(root).values()
    tags = [path.name for path in root.iterdir() if path.is_dir() and path not in epochs]
    tests = {tag: _read_values(_find_last_epoch(root / tag)) for tag in sorted(["", *tags])}
    return {tag: values for tag, values in tests.items() if values}


def count_epochs(directory: Path | str) -> int:
    """Return the highest n of the folders ``epoch-<n>`` of both splits, even if empty; 0 without any."""
    return max((epoch for split in Split for epoch in find_epoch_folders(Path(directory) / split)), default=0)


def _find_last_epoch(folder: Path) -> Path:
    """Return the last epoch in *folder*, which one pre-release of Burn wrote for a test set, or *folder*."""
    epochs = find_epoch_folders(folder)
    return epochs[max(epochs)] if epochs else folder


def _read_values(folder: Path) -> dict[str, float]:
    """Return metric to value of the logs in *folder*; each ``_`` in the name of a file becomes a space."""
    files = sorted(folder.glob("*.log"))
    values = {path.name.removesuffix(".log").replace("_", " "): _read_epoch_value(path) for path in files}
    return {metric: value for metric, value in values.items() if value is not None}


def _read_epoch_value(path: Path) -> float | None:
    total, weight, final, invalid, is_numeric = 0.0, 0.0, None, "", False
    for line_number, line in enumerate(_read_lines(path), start=1):
        value, comma, count = line.partition(",")
        if not line or value == "N/A":
            continue
        try:
            measured, samples = float(value), _parse_count(count if comma else "1")
        except ValueError:
            invalid = invalid or f"line {line_number}: {line!r}"
            continue
        is_numeric = True
        if samples:
            total += measured * samples
            weight += samples
        elif count == FINAL:
            final = measured
    if invalid and is_numeric:
        raise DataError(
            f"{path}, {invalid} is not 'value', 'value,count' or 'value,final'; remove the line, or the file"
        )
    return final if final is not None or not weight else total / weight


def _parse_count(text: str) -> float:
    count = 0.0 if text == FINAL else float(text)
    if not 0 <= count < math.inf:
        raise ValueError(text)
    return count


def _read_lines(path: Path) -> list[str]:
    try:
        return read_regular(path).decode("utf-8", errors="replace").split("\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Make it readable, or remove it") from error
