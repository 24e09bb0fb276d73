"""Burn's log files: ``<directory>/epoch-<n>/<Metric>.log``, one ``value,count`` line a batch.

The form is that of Burn 0.13 to 0.21, with the ``value,final`` line of 0.22 where a metric is no mean.
Names keep everything but spaces, which become ``_``.
"""

import shutil
from pathlib import Path

from stages.contracts.errors import BuilderError
from stages.contracts.text import number
from stages.loggers.lines import LineFile
from stages.loggers.names import file_name
from stages.loggers.reading import epoch_folders


class FileMetricLogger:
    """Logs one split. A file is begun anew when its epoch begins.

    The folders of later epochs, which an earlier run left, go then.

    Lines are kept for up to *flush_seconds*, then written by the call that finds them due.
    """

    def __init__(self, directory: Path | str, flush_seconds: float = 1.0) -> None:
        self.directory = Path(directory)
        self._flush_seconds = flush_seconds
        self._epoch = 0
        self._files: dict[str, LineFile] = {}

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Add a line for one batch of *count* samples.

        Raises `BuilderError` for a *name* that is no file's, or that shares its file with another.
        """
        self._file(epoch, name).write(f"{number(value)},{count}\n")

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add the line ``value,final``: what *name* was over the whole epoch."""
        self._file(epoch, name).write(f"{number(value)},final\n")

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Flush and close. What is logged after that begins its files anew."""
        while self._files:
            self._files.popitem()[1].close()

    def _file(self, epoch: int, name: str) -> LineFile:
        if epoch != self._epoch:
            self.close()
            self._epoch = epoch
        return self._files.get(name) or self._opened(name)

    def _opened(self, name: str) -> LineFile:
        path = self._folder() / file_name(name, "log")
        for other in self._files:
            if file_name(other, "log") == path.name:
                raise BuilderError(f"metrics {other!r} and {name!r} would share {path}: rename one of them")
        if not self._files:
            self._remove_later_epochs()
        self._files[name] = LineFile(path, "w", self._flush_seconds)
        return self._files[name]

    def _folder(self) -> Path:
        return self.directory / f"epoch-{self._epoch}"

    def _remove_later_epochs(self) -> None:
        for epoch, folder in epoch_folders(self.directory).items():
            if epoch > self._epoch and folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)


class TestMetricLogger(FileMetricLogger):
    """Logs one test set, which has no epochs: ``<directory>/<Metric>.log``, as Burn's evaluator does."""

    __test__ = False  # for pytest: a logger of tests, not a test

    def _folder(self) -> Path:
        return self.directory

    def _remove_later_epochs(self) -> None:
        """Nothing: what is called ``epoch-<n>`` here is not this logger's."""
