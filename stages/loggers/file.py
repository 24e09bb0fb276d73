"""Burn's log files: ``<directory>/epoch-<n>/<Metric>.log``, one ``value,count`` line a batch.

The form is that of Burn 0.13 to 0.21, with the ``value,final`` line of 0.22 where a metric is no mean.
Names keep everything but spaces, which become ``_``.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.contracts.errors import BuilderError
from stages.contracts.files import sync_directory
from stages.contracts.text import number
from stages.loggers.cutting import check_back, cut_back, hashes_of, removed
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
        self._last: int | None = None
        """The last epoch that may have a folder; None if that is not known yet."""
        self._files: dict[str, LineFile] = {}
        self._continued: dict[str, int] = {}
        """Size by path below the directory, of the files to go on with that are not open yet."""
        self._unsynced: set[Path] = set()
        """Closed files, and folders of new ones, that may not be on disk yet."""

    def log(self, epoch: int, name: str, value: float, count: int) -> None:
        """Add a line for one batch of *count* samples.

        Raises `BuilderError` for a *name* that is no file's, or that shares its file with another.
        """
        self._file(epoch, name).write(f"{number(value)},{count}\n")

    def log_final(self, epoch: int, name: str, value: float) -> None:
        """Add the line ``value,final``: what *name* was over the whole epoch."""
        self._file(epoch, name).write(f"{number(value)},final\n")

    def flush(self) -> None:
        """Hand everything to the operating system. Raises `StageError` if a file was removed meanwhile."""
        for file in self._files.values():
            file.flush()
            if file.is_removed():
                raise removed(file.path)

    def close(self) -> None:
        """Flush and close. What is logged after that begins its files anew."""
        self._continued.clear()
        while self._files:
            file = self._files.popitem()[1]
            self._unsynced.add(file.path)
            file.close()

    def position(self) -> dict[str, Any]:
        """Return size and sha256 of each file of the epoch that was logged last, with all of it on disk.

        Raises `StageError` if a file was removed meanwhile.
        """
        sizes = {self._place(file.path): file.sync() for file in self._files.values()}
        for path in sorted(self._unsynced):
            with suppress(FileNotFoundError):
                sync_directory(path)  # or a file: a file's name is no less synced by its descriptor
        self._unsynced.clear()
        sizes = self._continued | sizes
        return {"files": sizes, "sha256": hashes_of(self.directory, sizes)}

    def verify(self, position: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` if `resume` from *position* is impossible: a file is missing or changed."""
        check_back(self.directory, position)

    def resume(self, epoch: int, position: Mapping[str, Any]) -> None:
        """Go on in the middle of *epoch*, where everything was as *position* says; all later lines go.

        Raises `CheckpointError` where a file is missing or shorter than it was.
        """
        self.close()
        self._continued = cut_back(self.directory, position)
        self._epoch = epoch
        for path in self._folder().glob("*.log"):
            if self._place(path) not in self._continued:
                path.unlink()
        self._remove_epochs_after(epoch)
        self._last = epoch

    def cut(self, epoch: int) -> None:
        """The folders of the epochs after *epoch* go, whatever an earlier run left in them."""
        self.close()
        self._remove_epochs_after(epoch)
        self._last = epoch

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
            self._begin()
        goes_on = self._continued.pop(self._place(path), None) is not None
        self._files[name] = LineFile(path, "a" if goes_on else "w", self._flush_seconds)
        self._unsynced |= {path.parent, self.directory, self.directory.parent}
        return self._files[name]

    def _begin(self) -> None:
        """Forget the files of an epoch before, and remove those of epochs to come."""
        here = self._place(self._folder() / "x")[:-1]
        self._continued = {place: size for place, size in self._continued.items() if place.startswith(here)}
        if self._last is None or self._epoch < self._last:  # to list the folders takes long if there are many
            self._remove_epochs_after(self._epoch)
        self._last = self._epoch

    def _place(self, path: Path) -> str:
        return path.relative_to(self.directory).as_posix()

    def _folder(self) -> Path:
        return self.directory / f"epoch-{self._epoch}"

    def _remove_epochs_after(self, last: int) -> None:
        for epoch, folder in epoch_folders(self.directory).items():
            if epoch > last and folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)


class TestMetricLogger(FileMetricLogger):
    """Logs one test set, which has no epochs: ``<directory>/<Metric>.log``, as Burn's evaluator does."""

    __test__ = False  # for pytest: a logger of tests, not a test

    def _folder(self) -> Path:
        return self.directory

    def _remove_epochs_after(self, last: int) -> None:
        """Nothing: what is called ``epoch-<n>`` here is not this logger's."""
